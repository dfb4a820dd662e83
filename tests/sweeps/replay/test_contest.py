"""A sweep is replayed: its own search and others on the same made-up machines, without a job."""

from __future__ import annotations

import pytest

from conf.types.sweep_spec import ReplaySpec
from sweeps.points.plan import part_of, plan_sweep
from sweeps.replay.contest import Contest, contest
from sweeps.replay.machine import InventedMachine
from sweeps.replay.study import Ground, Study, score
from tests.composed import composed

# A hundred of the study's three thousand points.
STUDY = ["sweep=frontier-study", "batch.micro_batch_size=4", "parallel.world_size=128"]


@pytest.fixture(scope="module")
def ground() -> Ground:
    asked = composed(STUDY)
    record = plan_sweep(asked, proxy=False, git_sha="")
    return Study(part_of(asked, record.spec, proxy=False)).on(InventedMachine(1))


@pytest.fixture(scope="module")
def found() -> Contest:
    asked = composed(STUDY)
    return contest(asked, plan_sweep(asked, proxy=False, git_sha=""), ReplaySpec(num_machines=2, most_jobs=30))


def test_accumulation_is_five_or_ten_at_every_point_of_the_study(ground: Ground) -> None:
    steps = {each.num_micro_batches for each in ground.study.experiments}
    assert steps == {5, 10}


def test_what_came_of_jobs_says_when_the_best_was_found_and_what_was_lost(ground: Ground) -> None:
    best, lost = int(ground.rates.argmax()), int(ground.rates.argmin())
    assert ground.rates[lost] == 0
    game = score(ground, [lost, best])
    assert (game.found_at, game.num_jobs, game.num_lost, game.share) == (2, 2, 1, 1.0)
    assert score(ground, [lost]).found_at is None


def test_the_sweeps_own_search_needs_fewer_jobs_than_others_and_loses_fewer(found: Contest) -> None:
    ours, chance, tpe = found.standings
    assert ours.name == "search=bayes"
    assert ours.median_jobs <= 5
    assert ours.median_jobs <= min(chance.median_jobs, tpe.median_jobs)
    assert ours.share_lost <= tpe.share_lost
    assert len(tpe.games) == 2
