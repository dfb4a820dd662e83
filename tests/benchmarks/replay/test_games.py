"""Searches that compete on made-up machines: what counts as a job, as found and as the best."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.replay.contest import SearchStanding
from benchmarks.replay.knobs import KnobSpace
from benchmarks.replay.machine import InventedMachine
from benchmarks.replay.players import NEAR, Game, RandomPlayer, play
from benchmarks.replay.published import sections
from benchmarks.replay.run import replay_trial
from benchmarks.replay.sites import SITES, SiteGround
from train_core.trial.measurement import Outcome


@pytest.fixture(scope="module")
def ground() -> SiteGround:
    return SiteGround.of(SITES[0], InventedMachine(seed=77))


def test_the_best_is_the_best_of_all_plans_that_really_fit(ground: SiteGround) -> None:
    shares = [ground.share_of_best(row) for row in range(len(ground.log_costs))]
    assert max(shares) == 1.0
    assert 600 < ground.num_feasible < len(shares)


def test_a_ground_tells_of_a_plan_what_its_machine_tells(ground: SiteGround) -> None:
    for row in np.random.default_rng(0).choice(len(ground.log_costs), 20):
        experiment = ground.site.legal.experiment(int(row))
        assert experiment is not None
        ended = replay_trial(ground.machine, experiment)
        assert (ended.outcome is Outcome.OUT_OF_MEMORY) == (ground.log_cost(int(row)) is None)
        assert ground.row_of(experiment) == row


def test_a_search_at_random_pays_for_every_job_until_one_is_near_the_best(ground: SiteGround) -> None:
    game = play(RandomPlayer(ground, 0), ground, 10_000)
    assert game.jobs_to_best == game.num_jobs
    assert game.share >= NEAR


def test_knobs_name_every_legal_plan_once(ground: SiteGround) -> None:
    knobs = KnobSpace(ground.site)
    plans = ground.site.legal.by_kind[0][1]
    first = {name: int(getattr(plans, name)[0]) for name in knobs.values}
    assert knobs.row_of(first) == 0
    assert knobs.row_of({**first, "tensor_parallel_size": 3}) is None
    assert knobs.are_legal({name: np.array([value]) for name, value in first.items()}).tolist() == [True]


def test_a_search_that_found_nothing_counts_as_infinitely_many_jobs() -> None:
    games = [Game(jobs, 3, 0, 1.0) for jobs in (1, 2, None)]
    assert [game.counted_jobs for game in games] == [1, 2, np.inf]
    assert SearchStanding("some", tuple(games)).median_jobs == 2
    assert SearchStanding("some", (games[0], games[2], games[2])).median_jobs == np.inf


@pytest.mark.thorough  # than the other grounds
@pytest.mark.slow
def test_a_published_sweep_is_searched_among_its_own_rows() -> None:
    ground = max(sections().values(), key=lambda some: len(some.shares))
    game = ground.play(ground.bayes())
    assert game.jobs_to_best is not None
    assert game.jobs_to_best <= len(ground.shares)
