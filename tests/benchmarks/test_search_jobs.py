"""Searches that compete on made-up machines: what counts as a job, as found and as the best."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.search_jobs.contest import play
from benchmarks.search_jobs.grounds import NEAR, SITES, Ground
from benchmarks.search_jobs.players import Knobs, Random, median_of
from benchmarks.search_jobs.published import play_rows, sections
from sweeps.replay.machine import InventedMachine
from sweeps.replay.run import replay_trial
from train_core.measurement import Outcome


@pytest.fixture(scope="module")
def ground() -> Ground:
    return Ground.of(SITES[0], InventedMachine(seed=77))


def test_the_best_is_the_best_of_all_plans_that_really_fit(ground: Ground) -> None:
    shares = [ground.share_of_best(row) for row in range(len(ground.log_costs))]
    assert max(shares) == 1.0
    assert 600 < ground.num_feasible < len(shares)


def test_a_ground_tells_of_a_plan_what_its_machine_tells(ground: Ground) -> None:
    for row in np.random.default_rng(0).choice(len(ground.log_costs), 20):
        experiment = ground.site.legal.experiment(int(row))
        assert experiment is not None
        ended = replay_trial(ground.machine, experiment)
        assert (ended.outcome is Outcome.OUT_OF_MEMORY) == (ground.measured(int(row)) is None)
        assert ground.row_of(experiment) == row


def test_a_search_at_random_pays_for_every_job_until_one_is_near_the_best(ground: Ground) -> None:
    played = play(Random(ground, 0), ground, 10_000)
    assert played.jobs == played.num_jobs
    assert played.share >= NEAR


def test_knobs_name_every_legal_plan_once(ground: Ground) -> None:
    knobs = Knobs(ground)
    plans = ground.site.legal.by_kind[0][1]
    first = {name: int(getattr(plans, name)[0]) for name in knobs.values}
    assert knobs.row_of(first) == 0
    assert knobs.row_of({**first, "tensor_parallel_size": 3}) is None
    assert knobs.are_legal({name: np.array([value]) for name, value in first.items()}).tolist() == [True]


def test_a_search_that_found_nothing_counts_as_infinitely_many_jobs() -> None:
    assert median_of([1, 2, None]) == 2
    assert median_of([1, None, None]) == np.inf


@pytest.mark.slow
def test_a_published_sweep_is_searched_among_its_own_rows() -> None:
    rows = max(sections().values(), key=lambda some: len(some.rows))
    played = play_rows(rows)
    assert played.jobs is not None
    assert played.jobs <= len(rows.rows)
