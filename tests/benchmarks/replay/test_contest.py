"""A sweep is replayed: its own search and others on the same made-up machines, without a job."""

from __future__ import annotations

import pytest

from benchmarks.replay.contest import Contest, Study, StudyGround, contest_of
from benchmarks.replay.machine import InventedMachine
from benchmarks.replay.players import Game, play
from conf.types.sweep_spec import ReplaySpec
from sweeps.points.plan import part_of, plan_sweep
from tests.composed import composed

# A hundred of the study's three thousand points.
STUDY = ["sweep=frontier-study", "batch.micro_batch_size=4", "parallel.world_size=128"]


class Listing:
    """A player that chooses what it is given."""

    def __init__(self, rows: list[int]) -> None:
        self._rows = iter(rows)

    def next_row(self) -> int | None:
        return next(self._rows, None)

    def tell(self, row: int) -> None:
        pass


@pytest.fixture(scope="module")
def ground() -> StudyGround:
    asked = composed(STUDY)
    record = plan_sweep(asked, proxy=False, git_sha="")
    return Study(part_of(asked, record.spec, proxy=False)).on(InventedMachine(1))


@pytest.fixture(scope="module")
def contest() -> Contest:
    asked = composed(STUDY)
    return contest_of(asked, plan_sweep(asked, proxy=False, git_sha=""), ReplaySpec(num_machines=2, most_jobs=30))


def test_accumulation_is_five_or_ten_at_every_point_of_the_study(ground: StudyGround) -> None:
    steps = {each.num_micro_batches for each in ground.study.experiments}
    assert steps == {5, 10}


def test_what_came_of_jobs_says_when_the_best_was_found_and_what_was_lost(ground: StudyGround) -> None:
    best, lost = int(ground.shares.argmax()), int(ground.fits.argmin())
    assert ground.shares[lost] == 0
    assert play(Listing([lost, best]), ground, 10) == Game(2, 2, 1, 1.0)
    assert play(Listing([lost]), ground, 10) == Game(None, 1, 1, 0.0)


def test_the_sweeps_own_search_needs_fewer_jobs_than_others_and_loses_fewer(contest: Contest) -> None:
    ours, chance, tpe = contest.standings
    assert ours.name == "search=bayes"
    assert ours.median_jobs <= 5
    assert ours.median_jobs <= min(chance.median_jobs, tpe.median_jobs)
    assert ours.share_lost <= tpe.share_lost
    assert len(tpe.games) == 2
