"""Passes in time, against arithmetic by hand and against the simulation that holds the cost model's closed form."""

from __future__ import annotations

import pytest

from results.report.pipeline_spans import TimedAction, action_times
from tests.costs.pipeline_events import (
    Stage,
    interleaved_passes,
    one_f_one_b_passes,
    simulated_seconds,
    zero_bubble_passes,
)
from train_core.parallel.schedules import Action, gpipe, interleaved, one_forward_one_backward, zero_bubble

STAGES = (Stage(1.0, 1.5, 0.5), Stage(1.25, 1.0, 0.75), Stage(0.75, 1.0, 1.0))
NUM_STAGES, NUM_MICRO_BATCHES, NUM_CHUNKS = 3, 7, 2


def length(timed: list[list[TimedAction]]) -> float:
    return max(of_stage[-1].end for of_stage in timed)


def test_two_equal_stages_under_1f1b_are_as_the_schedules_draw_them() -> None:
    """F takes 1, B takes 2: stage 0 waits for 2 before its first backward pass and for 1 before its last."""
    actions = [one_forward_one_backward(2, stage, 4) for stage in range(2)]
    timed = action_times(actions, lambda stage, action: 1.0 if action.kind == "forward" else 2.0)
    assert [(entry.start, entry.end) for entry in timed[0]][:4] == [(0.0, 1.0), (1.0, 2.0), (4.0, 6.0), (6.0, 7.0)]
    assert length(timed) == 15.0


def test_gpipe_runs_all_forward_passes_first() -> None:
    timed = action_times([gpipe(4)] * 2, lambda stage, action: 1.0)
    assert [entry.action.kind for entry in timed[0]] == ["forward"] * 4 + ["backward"] * 4
    assert length(timed) == 2 * (4 + 1)


def test_one_stage_never_waits() -> None:
    (timed,) = action_times([one_forward_one_backward(1, 0, 3)], lambda stage, action: 1.0)
    assert [entry.start for entry in timed] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "interleaved"])
def test_uneven_stages_take_as_long_as_in_the_simulation(schedule: str) -> None:
    stages, m = range(NUM_STAGES), NUM_MICRO_BATCHES
    match schedule:
        case "1f1b":
            actions = [one_forward_one_backward(NUM_STAGES, stage, m) for stage in stages]
            expected = simulated_seconds(STAGES, [one_f_one_b_passes(stage, NUM_STAGES, m) for stage in stages], 1)
        case "zero-bubble":
            actions = [zero_bubble(NUM_STAGES, stage, m) for stage in stages]
            expected = simulated_seconds(STAGES, [zero_bubble_passes(stage, NUM_STAGES, m) for stage in stages], 1)
        case _:
            actions = [interleaved(NUM_STAGES, stage, m, NUM_CHUNKS) for stage in stages]
            passes = [interleaved_passes(stage, NUM_STAGES, m, NUM_CHUNKS) for stage in stages]
            expected = simulated_seconds(STAGES, passes, NUM_CHUNKS)
    is_split, chunks = schedule == "zero-bubble", NUM_CHUNKS if schedule == "interleaved" else 1

    def seconds_of(stage: int, action: Action) -> float:
        of_stage = STAGES[stage]
        match action.kind:
            case "forward":
                return of_stage.forward / chunks
            case "weight":
                return of_stage.weight_gradient
            case _:
                return (of_stage.input_gradient + (0.0 if is_split else of_stage.weight_gradient)) / chunks

    assert length(action_times(actions, seconds_of)) == pytest.approx(expected)
