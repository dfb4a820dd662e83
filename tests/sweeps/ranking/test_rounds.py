"""Rounds of further measurements, on numbers small enough to check by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import pytest

from sweeps.ranking.intervals import machine_noise, of_one_run, of_runs, pooled_spread
from sweeps.ranking.points import measured_points, ranking_of, rivals_of_first
from sweeps.ranking.rounds import Rounds
from sweeps.reading import TrialReading
from sweeps.search.searcher import Answer
from sweeps.trial import Trial
from tests.results.conftest import performance, trial
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Measurement, Outcome, Performance

OVER = "every listed point was tried"


@dataclass(frozen=True, kw_only=True)
class Measured(TrialReading):
    """A reading without a disk."""

    measurement: Measurement | None


def reading(of: Trial, measured: Performance | None = None, outcome: Outcome = Outcome.COMPLETED) -> TrialReading:
    assert of.experiment is not None
    left = Measurement(
        fingerprint=of.experiment.fingerprint, outcome=outcome, cause="", performance=measured, started=0.0, ended=1.0
    )
    known = left if outcome.is_final else None
    return Measured(folder=TrialFolder(of.trial_id), experiment=of.experiment, trial=of, measurement=known)


def run(
    micro_batch: int,
    tokens_per_second: float = 1.0,
    repeat: int = 0,
    peak: float = 1e12,
    outcome: Outcome = Outcome.COMPLETED,
) -> TrialReading:
    """A run of a point, which its micro-batch names; that of 1 is the baseline."""
    of = trial(f"mb{micro_batch}-r{repeat + 1}", micro_batch_size=micro_batch, is_baseline=micro_batch == 1 > repeat)
    of = of.model_copy(update={"repeat": repeat, "selected": True, "infeasible_reason": None})
    if outcome is not Outcome.COMPLETED:
        return reading(of, None, outcome)
    return reading(of, performance(tokens_per_second, peak_source="measured", peak_flops_per_second=peak))


def proposed(answer: Answer) -> list[tuple[object, int]]:
    return [(each.point["micro_batch_size"], each.repeat) for each in answer.proposals]


def asked(trials: Sequence[TrialReading], most: int = 3, *, every_point: bool = False) -> Answer:
    return Rounds(most, every_point=every_point).ask(trials, 10, OVER)


def test_leaders_that_cannot_be_told_apart_and_the_baseline_take_turns() -> None:
    """Each run's steps spread by 5 % either way: 97 may reach 100, 60 and 50 may not."""
    first = [run(1, 50.0), run(2, 97.0), run(4, 100.0), run(8, 60.0)]
    answer = asked(first)
    assert proposed(answer) == [(4, 1), (2, 1), (1, 1)]
    assert answer.proposals[0].because == "round 2 of at most 3: it may be the fastest, or is the baseline"
    # Whoever has had its turn waits for the others.
    assert proposed(asked([*first, run(4, 99.0, 1)])) == [(2, 1), (1, 1)]


def test_intervals_that_part_end_the_rounds() -> None:
    first = [run(1, 50.0), run(2, 97.0), run(4, 100.0)]
    agreeing = [run(1, 50.1, 1), run(2, 96.9, 1), run(4, 100.1, 1)]
    assert asked([*first, *agreeing]).finished == f"{OVER}, and 3 measurements repeated; the fastest stands apart"


def test_the_budget_of_repeats_ends_them_without_a_winner() -> None:
    noisy = [run(1, 90.0), run(2, 97.0), run(4, 100.0), run(1, 99.0, 1), run(2, 101.0, 1), run(4, 95.0, 1)]
    answer = asked(noisy, most=2)
    assert answer.finished == f"{OVER}, and 3 measurements repeated; no clear winner among them"
    assert len(asked(noisy, most=3).proposals) == 3


def test_nobody_is_asked_while_a_measurement_is_under_way() -> None:
    assert asked([run(1, 50.0), run(2, 97.0), run(4, outcome=Outcome.RUNNING)]) == Answer()


def test_a_winner_that_stands_apart_at_once_costs_no_repeat() -> None:
    assert asked([run(1, 50.0), run(2, 100.0)]).finished == f"{OVER}; the fastest stands apart"


def test_a_repeat_that_failed_was_a_turn_too() -> None:
    trials = [run(2, 97.0), run(4, 100.0), run(4, repeat=1, outcome=Outcome.FAILED), run(2, 99.0, 1)]
    assert proposed(asked(trials)) == [(4, 2), (2, 2)]


def test_a_scaling_study_measures_every_point_as_often() -> None:
    first = [run(1, 50.0), run(2, 100.0)]
    assert proposed(asked(first, every_point=True)) == [(2, 1), (1, 1)]


def test_a_peak_that_varies_widens_the_interval_of_a_single_run() -> None:
    """60 is far from 100 on a quiet machine, and not where the machine itself was once four times as fast."""
    quiet, noisy = [run(1, 60.0), run(2, 100.0)], [run(1, 60.0, peak=1e12), run(2, 100.0, peak=4e12)]
    assert machine_noise(each.performance for each in noisy) == pytest.approx(4.0)
    points = measured_points(quiet)
    assert rivals_of_first(points) == []
    points = measured_points(noisy)
    assert [point.name for point in rivals_of_first(points)] == [noisy[0].label]
    assert "widened by the noise x4" in points[0].seconds.method
    assert len(asked(noisy).proposals) == 2


def test_a_point_stands_by_its_middle_run_with_an_interval_of_all_of_them() -> None:
    trials = [run(2, 90.0), run(4, 95.0), run(2, 110.0, 1), run(2, 100.0, 2)]
    assert [each.trial.trial_id for each in ranking_of(trials)] == ["mb2-r3", "mb4-r1"]
    best, other = measured_points(trials)
    assert (best.middle.trial.trial_id, best.seconds.num_runs, other.seconds.num_runs) == ("mb2-r3", 3, 1)
    assert best.bounds[0] < best.values[0] < best.bounds[1]
    # The spread between runs of one point says how far a single run of the other may be off.
    assert other.seconds.high / other.seconds.low > best.seconds.high / best.seconds.low


def test_an_interval_by_hand() -> None:
    """Two runs a factor e^0.2 apart: deviation 0.2/sqrt(2), error 0.1, and t of one degree of freedom is 12.71."""
    runs = [1.0, exp(0.2)]
    spread = pooled_spread([runs, [3.0]])
    assert spread is not None
    assert spread.freedom == 1
    assert spread.deviation == pytest.approx(0.2 / 2**0.5)
    interval = of_runs(runs, spread)
    assert interval.low == pytest.approx(exp(0.1 - 1.271))
    assert interval.high == pytest.approx(exp(0.1 + 1.271))
    assert pooled_spread([[1.0], [2.0]]) is None
    assert (of_one_run(1.0, 2.0, 4.0).low, of_one_run(1.0, 2.0, 4.0).high) == (0.5, 4.0)
