"""Properties of the schedules of all stages together: complete, free of circular waits, and as deep as is priced."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from conf.plan.knobs import SCHEDULES
from costs.step.in_flight import chunks_in_flight
from tests.costs import pipeline_events
from tests.costs.pipeline_events import Pass, Stage, simulated_seconds
from train_core.parallel.schedules import Action, gpipe, interleaved, one_forward_one_backward, zero_bubble

Pipeline = list[list[Action]]
"""What every stage does, first stage to last."""


@some.composite
def pipelines(draw: some.DrawFn) -> tuple[str, int, int, Pipeline]:
    """(schedule, chunks, micro-batches, actions)."""
    schedule = draw(some.sampled_from(SCHEDULES))
    p = draw(some.integers(2, 8))
    v = draw(some.integers(2, 4)) if schedule == "interleaved" else 1
    m = draw(some.integers(1, 20))
    return schedule, v, m, pipeline_of(schedule, p, m, v)


def pipeline_of(schedule: str, p: int, m: int, v: int = 1) -> Pipeline:
    stages: dict[str, Any] = {
        "gpipe": lambda stage: gpipe(m),
        "1f1b": lambda stage: one_forward_one_backward(p, stage, m),
        "interleaved": lambda stage: interleaved(p, stage, m, v),
        "zero-bubble": lambda stage: zero_bubble(p, stage, m),
    }
    return [stages[schedule](stage) for stage in range(p)]


@given(pipelines())
def test_every_pass_runs_once(pipeline: tuple[str, int, int, Pipeline]) -> None:
    schedule, v, m, stages = pipeline
    kinds = ("forward", "backward", "weight") if schedule == "zero-bubble" else ("forward", "backward")
    expected = sorted(Action(kind, index, chunk) for kind in kinds for index in range(m) for chunk in range(v))  # type: ignore[arg-type]
    assert all(sorted(actions) == expected for actions in stages)


@given(pipelines())
def test_a_pass_comes_after_what_it_needs_of_its_own_stage(pipeline: tuple[str, int, int, Pipeline]) -> None:
    for actions in pipeline[3]:
        position = {action: index for index, action in enumerate(actions)}
        for action, index in position.items():
            if action.kind != "forward":
                before = {"backward": "forward", "weight": "backward"}[action.kind]
                assert position[action._replace(kind=before)] < index  # type: ignore[arg-type]


def messages(stages: Pipeline, v: int) -> dict[tuple[str, int, int], tuple[list[Action], list[Action]]]:
    """By channel (kind, from, to), what is sent in order and what is received in order, named by the receiving pass."""
    p = len(stages)
    sent, received = defaultdict(list), defaultdict(list)
    for stage, actions in enumerate(stages):
        for action in actions:
            for step, kind in ((1, "forward"), (-1, "backward")):
                place = action.chunk * p + stage
                if action.kind == kind and 0 <= place + step < p * v:
                    chunk, neighbour = divmod(place + step, p)
                    sent[kind, stage, neighbour].append(action._replace(chunk=chunk))
                if action.kind == kind and 0 <= place - step < p * v:
                    received[kind, (place - step) % p, stage].append(action)
    assert sent.keys() == received.keys()
    return {channel: (sent[channel], received[channel]) for channel in sent}


@given(pipelines())
def test_a_channel_is_emptied_in_the_order_in_which_it_is_filled(pipeline: tuple[str, int, int, Pipeline]) -> None:
    for sent, received in messages(pipeline[3], pipeline[1]).values():
        assert sent == received


@given(pipelines())
def test_the_stages_never_wait_in_a_circle(pipeline: tuple[str, int, int, Pipeline]) -> None:
    _, v, _, stages = pipeline
    p = len(stages)
    done: set[tuple[int, Action]] = set()
    left = [list(actions) for actions in stages]
    while any(left):
        runnable = [
            stage for stage, actions in enumerate(left) if actions and _has_input(stage, actions[0], p, v, done)
        ]
        assert runnable, f"stuck with {left}"
        for stage in runnable:
            done.add((stage, left[stage].pop(0)))


def _has_input(stage: int, action: Action, p: int, v: int, done: set[tuple[int, Action]]) -> bool:
    if action.kind == "weight":
        return True
    place = action.chunk * p + stage + (-1 if action.kind == "forward" else 1)
    chunk, neighbour = divmod(place, p)
    return not 0 <= place < p * v or (neighbour, action._replace(chunk=chunk)) in done


def most_in_flight(actions: list[Action]) -> int:
    """Forward passes whose activations are still needed: for weight gradients where those come later."""
    last = "weight" if any(action.kind == "weight" for action in actions) else "backward"
    changes = [(action.kind == "forward") - (action.kind == last) for action in actions]
    return int(np.cumsum(changes).max())


@given(pipelines())
def test_as_much_is_in_flight_as_the_cost_model_says(pipeline: tuple[str, int, int, Pipeline]) -> None:
    schedule, v, m, stages = pipeline
    plans: Any = SimplePlans(len(stages), v, m, SCHEDULES.index(schedule))
    for stage, actions in enumerate(stages):
        assert most_in_flight(actions) == chunks_in_flight(plans, np.array([stage]))[0]


class SimplePlans:
    """The columns that `chunks_in_flight` reads."""

    def __init__(self, p: int, v: int, m: int, schedule: int) -> None:
        self.pipeline_parallel_size, self.virtual_pipeline_size = np.array([p]), np.array([v])
        self.num_micro_batches, self.schedule = np.array([m]), np.array([schedule])


REFERENCES: dict[str, Any] = {
    "1f1b": lambda stage, p, m, v: pipeline_events.one_f_one_b_passes(stage, p, m),
    "interleaved": pipeline_events.interleaved_passes,
    "zero-bubble": lambda stage, p, m, v: pipeline_events.zero_bubble_passes(stage, p, m),
}
KINDS = {"backward": "input gradient", "weight": "weight gradient"}


def passes_of(actions: list[Action]) -> list[Pass]:
    """In the words of the simulation, which tells a whole backward from one that leaves out weight gradients."""
    kinds: Any = KINDS if any(action.kind == "weight" for action in actions) else {}
    return [Pass(kinds.get(action.kind, action.kind), action.chunk, action.micro_batch) for action in actions]


@given(pipelines())
def test_the_trainer_runs_the_passes_whose_time_is_predicted(pipeline: tuple[str, int, int, Pipeline]) -> None:
    schedule, v, m, stages = pipeline
    if schedule in REFERENCES:
        for stage, actions in enumerate(stages):
            assert passes_of(actions) == REFERENCES[schedule](stage, len(stages), m, v)


def seconds_of(schedule: str, stages: list[Stage], m: int) -> float:
    return simulated_seconds(stages, [passes_of(actions) for actions in pipeline_of(schedule, len(stages), m)], 1)


@given(some.integers(2, 8), some.integers(0, 12), some.floats(1, 2), some.floats(0.6, 1))
def test_zero_bubble_is_shorter_than_1f1b_by_two_weight_gradients_a_stage_that_waits(
    p: int, more: int, inputs: float, weights: float
) -> None:
    """p - 1 waits of forward + input - weight, not of forward + input + weight. Source: arXiv 2401.10241, table 2."""
    stage = Stage(1.0, inputs, weights)
    shorter = seconds_of("1f1b", [stage] * p, p + more) - seconds_of("zero-bubble", [stage] * p, p + more)
    assert shorter == pytest.approx(2 * (p - 1) * weights)


def test_gpipe_is_as_long_as_1f1b() -> None:
    stage = Stage(1.0, 1.0, 1.0)
    assert seconds_of("gpipe", [stage] * 4, 8) == seconds_of("1f1b", [stage] * 4, 8) == (8 + 3) * 3


def test_the_last_stage_of_1f1b_alternates_from_the_start() -> None:
    kinds = [action.kind for action in one_forward_one_backward(4, 3, 5)]
    assert kinds == ["forward", "backward"] * 5
