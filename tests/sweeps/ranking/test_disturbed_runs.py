"""What a disturbed run does to its point, and what is done about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import pytest

from conf.types.sweep_spec import Objective
from results.tables.sweep_tables import ranking_table
from sweeps.ranking.disturbed import LATE, MEASURED_PEAK, PEAK_TOO_LOW, TWO_SPEEDS, disturbances
from sweeps.ranking.intervals import RepeatInterval, with_own_steps
from sweeps.ranking.points import best_first, measured_points, places, ranking_of, rivals_of_first
from sweeps.ranking.rounds import far_from_prediction
from sweeps.reading import TrialReading
from sweeps.search.searcher import Answer
from tests.conftest import BuildRecord
from tests.results.conftest import performance, trial
from tests.steps import STEP
from tests.sweeps.ranking.test_rounds import Measured, asked, proposed, reading, run
from train_core.trial.measurement import Outcome, StepMetrics

QUIET = (1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01)
TWO = (1.0, 2.3, 1.0, 2.25, 2.28, 1.02, 2.3)


@dataclass(frozen=True, kw_only=True)
class Stepped(Measured):
    """With the steps that were timed."""

    timed: tuple[StepMetrics, ...]

    @property
    def steps(self) -> tuple[StepMetrics, ...]:
        return self.timed


def stepped(micro_batch: int, seconds: Sequence[float], repeat: int = 0, **changes: Any) -> TrialReading:
    """A run of the point that its micro-batch names; 256 tokens a step."""
    return with_steps(run(micro_batch, 1.0, repeat), seconds, **changes)


def with_steps(of: TrialReading, seconds: Sequence[float], **changes: Any) -> TrialReading:
    assert of.measurement is not None
    spread: dict[str, Any] = {
        "step_seconds_min": min(seconds),
        "step_seconds_max": max(seconds),
        "num_timed_steps": len(seconds),
    }
    known = performance(256 / median(seconds), **spread, **changes)
    numbered = enumerate(seconds, start=2)
    steps = tuple(STEP.model_copy(update={"step": number, "step_seconds": each}) for number, each in numbered)
    warmup = STEP.model_copy(update={"step_seconds": 60.0, "warmup": True})
    return Stepped(
        folder=of.folder,
        experiment=of.experiment,
        trial=of.trial,
        measurement=of.measurement.model_copy(update={"performance": known}),
        timed=(warmup, *steps),
    )


def late(batch: int, factor: float, repeat: int = 0) -> TrialReading:
    """A run that took so much longer than predicted, of the point that its batch names."""
    of = trial(f"gb{batch}-r{repeat + 1}", global_batch_size=batch)
    of = of.model_copy(update={"repeat": repeat, "selected": True, "infeasible_reason": None})
    assert of.estimate is not None
    return with_steps(reading(of, performance(1.0)), at(factor * of.estimate.step_seconds))


def asked_of(answer: Answer) -> list[tuple[object, int]]:
    return [(each.point["global_batch_size"], each.repeat) for each in answer.proposals]


def at(scale: float, steps: Sequence[float] = QUIET) -> list[float]:
    return [scale * each for each in steps]


def test_a_disturbed_run_is_measured_again_before_the_leaders_and_up_to_a_limit() -> None:
    first = [stepped(2, at(1.0)), stepped(4, at(1.01)), stepped(8, at(1.5, TWO))]
    answer = asked(first)
    assert proposed(answer) == [(8, 1)]
    assert answer.proposals[0].because == f"round 2 of at most 3: {TWO_SPEEDS}"
    again = [*first, stepped(8, at(1.5, TWO), 1)]
    assert proposed(asked(again)) == [(8, 2)]
    assert (8, 3) not in proposed(asked([*again, stepped(8, at(1.5, TWO), 2)]))


def test_a_point_that_was_disturbed_alone_comes_last_without_a_place_and_is_never_the_best() -> None:
    trials = [stepped(2, at(1.0)), stepped(4, at(0.5, TWO)), stepped(8, at(2.0))]
    points = measured_points(trials)
    assert [point.disturbed for point in points] == ["", "", TWO_SPEEDS]
    assert places(points) == ["1", "2", ""]
    assert [each.trial.trial_id for each in ranking_of(trials)] == ["mb2-r1", "mb8-r1", "mb4-r1"]
    assert [point.middle.trial.trial_id for point in rivals_of_first(points)] == ["mb4-r1"]


def test_a_steady_run_takes_the_place_of_a_disturbed_one_of_its_point() -> None:
    trials = [stepped(2, at(1.0, TWO)), stepped(4, at(1.2)), stepped(2, at(1.0), 1)]
    best = measured_points(trials)[0]
    assert (best.middle.trial.trial_id, best.disturbed, len(best.runs), best.seconds.num_runs) == ("mb2-r2", "", 2, 1)
    assert disturbances(trials) == {"mb2-r1": TWO_SPEEDS}


def test_of_two_runs_the_mean_counts_so_that_a_leader_does_not_fall_behind_for_being_measured_twice() -> None:
    """4 is the fastest by the mean of its runs, and was second by the slower of them."""
    trials = [run(2, 100.0), run(4, 121.0), run(4, 90.0, 1)]
    point = measured_points(trials)[0]
    assert point.performance.tokens_per_second == pytest.approx((121.0 * 90.0) ** 0.5)
    assert point.performance.step_seconds == pytest.approx(256 / (121.0 * 90.0) ** 0.5)
    assert ranking_of(trials)[0].trial.trial_id == point.middle.trial.trial_id == "mb4-r2"
    assert trials[2].performance is not None
    assert trials[2].performance.tokens_per_second == 90.0  # what was measured stays what it was


def test_a_peak_below_the_rate_disturbed_its_run_where_it_was_measured_beside_it() -> None:
    measured = stepped(2, QUIET, peak_source=MEASURED_PEAK, model_flops_utilization=4.32)
    stated = stepped(2, QUIET, peak_source="data sheet", model_flops_utilization=4.32)
    assert disturbances([measured]) == {"mb2-r1": PEAK_TOO_LOW}
    assert disturbances([stated]) == {}


def test_an_interval_is_no_narrower_than_that_of_its_own_steps() -> None:
    narrow = RepeatInterval(0.99, 1.01, 1, "by t")
    assert with_own_steps(narrow, ()) == narrow
    assert with_own_steps(narrow, [1.0, 1.001, 0.999]) == narrow
    wide = with_own_steps(narrow, [0.8, 0.9, 1.0, 1.1, 1.3])
    assert (wide.low, wide.high) == (0.8, 1.3)
    # Of twenty, five lie outside at either end: 1 - 2 P(X <= 5) = 0.959 of a binomial with p = 1/2.
    many = with_own_steps(narrow, [float(step) for step in range(1, 21)])
    assert (many.low, many.high) == (0.99, 15.0)
    # So many that exact binomial coefficients took minutes; 10,000 - 1.96 sqrt(20,000) / 2 - 1 / 2 = 9,860.9.
    long = with_own_steps(narrow, [float(step) for step in range(1, 20_001)])
    assert (long.low, long.high) == (0.99, 20_000.0 - 9_860)


def test_a_point_that_is_far_later_than_the_others_is_measured_twice_and_no_more() -> None:
    usual = [late(batch, factor) for batch, factor in ((8, 1.30), (16, 1.35), (24, 1.25), (32, 1.28))]
    slow = late(40, 2.5)
    assert far_from_prediction(measured_points(usual)) == []
    points = measured_points([*usual, slow])
    assert [point.middle.trial.trial_id for point in far_from_prediction(points)] == ["gb40-r1"]
    assert asked_of(asked([*usual, slow])) == [(40, 1)]
    assert (40, 2) not in asked_of(asked([*usual, slow, late(40, 2.5, 1)]))


def test_a_run_on_a_slow_node_says_nothing_once_another_run_of_its_point_was_in_time() -> None:
    usual = [late(batch, factor) for batch, factor in ((8, 1.30), (16, 1.35), (24, 1.25), (32, 1.28))]
    slow, in_time = late(40, 2.5), late(40, 1.3, 1)
    assert disturbances([*usual, slow]) == {}
    assert disturbances([*usual, slow, in_time]) == {"gb40-r1": LATE}
    point = next(point for point in measured_points([*usual, slow, in_time]) if len(point.runs) == 2)
    assert (point.middle.trial.trial_id, point.seconds.num_runs) == ("gb40-r2", 1)


def test_a_repeat_that_was_cancelled_is_neither_done_nor_replaced_by_another() -> None:
    first = [run(2, 97.0), run(4, 100.0)]
    cancelled = run(4, repeat=1, outcome=Outcome.CANCELLED)
    assert proposed(asked([*first, cancelled])) == [(2, 1)]
    # Of a budget of four repeats none is spent on eight that were never measured.
    many = [run(4, repeat=repeat, outcome=Outcome.CANCELLED) for repeat in range(1, 9)]
    assert proposed(asked([*first, *many], most=2)) == [(2, 1)]
    failed = run(4, repeat=1, outcome=Outcome.FAILED)
    assert proposed(asked([*first, failed, run(2, 99.0, 1)], most=2)) == []


@pytest.mark.parametrize("objective", ["throughput", "step_time"])
def test_the_best_points_are_named_by_their_first_run_and_have_one_row_also_where_that_was_disturbed(
    objective: Objective, build_record: BuildRecord
) -> None:
    readings = [stepped(2, at(1.0, TWO)), stepped(4, at(1.5)), stepped(2, at(1.0), 1)]
    record = build_record([{}], []).model_copy(
        update={"objective": (objective,), "trials": tuple(each.trial for each in readings)}
    )
    assert [each.trial.trial_id for each in best_first(record, readings)] == ["mb2-r1", "mb4-r1"]
    assert len(ranking_table(record, readings).rows) == 2


def test_traced_steps_are_slower_and_disturb_no_run() -> None:
    untraced = stepped(2, (*QUIET, *at(2.3, (1.0, 1.01, 0.99)), *QUIET))
    traced = untraced.planned.profile.model_copy(update={"trace_steps": (9, 10, 11)})  # the first step is a warm-up
    experiment = untraced.planned.model_copy(update={"profile": traced})
    assert list(disturbances([untraced]).values()) == [TWO_SPEEDS]
    assert disturbances([replace(untraced, experiment=experiment)]) == {}
