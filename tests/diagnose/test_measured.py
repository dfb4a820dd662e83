"""The middle of the steady steps, and what stands beside them: warm-up, slow lines, drift, two speeds, a ramp."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from diagnose.measured import DRIFT, SHIFT, TWO_SPEEDS, MeasuredSteps, measured
from diagnose.runs import LoggedMemory, LogLine, UserRun
from tests.diagnose.made_run import made_run, steps_of


def steady(seconds: float, number: int, seed: int = 1) -> list[float]:
    drawn = random.Random(seed)
    return [seconds * drawn.gauss(1, 0.005) for _ in range(number)]


def of(seconds: Sequence[float], covers: int = 1) -> MeasuredSteps:
    found = measured(UserRun("run.log", steps=steps_of(seconds, covers)))
    assert found is not None
    return found


def test_the_first_interval_that_compiles_is_warm_up() -> None:
    found = of([25.0, *steady(10, 12)], covers=10)
    assert (len(found.warmup), found.warmup[0].seconds) == (1, 25.0)
    assert found.step_seconds == pytest.approx(10, rel=0.01)
    assert found.low_seconds < found.step_seconds < found.high_seconds
    assert found.pace is None


def test_a_run_that_gets_slower_from_the_first_on_has_no_warm_up() -> None:
    found = of([10 * (1 + 0.01 * place) for place in range(40)])
    assert found.warmup == ()
    assert found.pace is not None
    assert (found.pace.kind, found.pace.gets_slower) == (DRIFT, True)
    assert found.step_seconds == pytest.approx(10.45)


def test_slow_lines_at_equal_distances_are_set_aside_with_their_share() -> None:
    found = of([10 * (3 if place % 8 == 7 else 1) for place in range(40)])
    assert found.spikes is not None
    assert (len(found.spikes.lines), found.spikes.every) == (5, 8)
    assert found.spikes.share == pytest.approx(100 / 500)
    assert found.step_seconds == 10


def test_another_pace_has_its_line_and_the_fast_part_is_taken() -> None:
    found = of([*steady(10, 20), *steady(14, 20)])
    assert found.pace is not None
    assert (found.pace.kind, found.pace.at) == (SHIFT, LogLine("run.log", 120, ""))
    assert found.step_seconds == pytest.approx(10, rel=0.01)
    assert found.pace.slower_seconds == pytest.approx(14, rel=0.01)


def test_two_speeds_by_turns_are_told_from_a_change_of_pace() -> None:
    found = of([14.0 if place % 2 else 10.0 for place in range(40)])
    assert found.pace is not None
    assert (found.pace.kind, found.pace.at) == (TWO_SPEEDS, None)
    assert found.step_seconds == 10


def test_a_run_without_a_steady_state_has_no_single_number() -> None:
    drawn = random.Random(2)
    assert not of([10 * drawn.uniform(0.5, 2.0) for _ in range(40)]).is_steady
    assert of(steady(10, 40)).is_steady


def test_of_a_ramp_the_batch_of_most_steps_is_taken_and_the_others_are_said() -> None:
    run = UserRun("run.log", steps=[*steps_of(steady(5, 6), batch=128), *steps_of(steady(10, 20), batch=256)])
    found = measured(run)
    assert found is not None
    assert found.batch == 256
    assert found.step_seconds == pytest.approx(10, rel=0.01)
    assert found.other_batches == {128: pytest.approx(5, rel=0.01)}


def test_a_single_first_line_holds_the_first_step() -> None:
    assert of([30.0], covers=1).holds_first_step
    assert not of([30.0, 10.0]).holds_first_step


def test_memory_is_the_most_that_any_rank_says() -> None:
    at = LogLine("run.log", 9, "")
    run = UserRun("run.log", steps=steps_of([10.0, 10.0], memory_bytes=5e9))
    run.memory = [LoggedMemory(0, 3e9, 4e9, at), LoggedMemory(8, 6e9, 7e9, at)]
    found = measured(run)
    assert found is not None
    assert (found.allocated_bytes, found.reserved_bytes) == (6e9, 7e9)


def test_lines_without_a_time_are_no_measurement() -> None:
    assert measured(UserRun("run.log", steps=steps_of([float("nan")] * 3))) is None


def test_a_step_that_the_command_tells_of_is_believed_before_the_log() -> None:
    run = made_run(columns={"iter_time_s": "8.5"})
    found = measured(run)
    assert found is not None
    assert (found.step_seconds, found.warmup) == (8.5, ())
    run = made_run(columns={"tokens_per_s": str(256 * 4096 / 7.5)})
    found = measured(run)
    assert found is not None
    assert found.step_seconds == pytest.approx(7.5)
