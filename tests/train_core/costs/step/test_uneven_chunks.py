"""What is counted of uneven chunks against the schedules themselves, pass by pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from conf.plan.chunks import chunk_layers, group_sizes
from train_core.costs.stages import StageGroup
from train_core.costs.step.schedule import INTERLEAVED
from train_core.costs.step.stage_memory import chunks_in_flight, heavier_in_flight, losses_of_smaller_groups
from train_core.parallel.schedules import interleaved


class Pipeline(NamedTuple):
    num_stages: int
    num_chunks: int
    num_micro_batches: int

    def plans(self) -> Any:
        """The columns that are read."""
        return SimpleNamespace(
            pipeline_parallel_size=np.array([self.num_stages]),
            virtual_pipeline_size=np.array([self.num_chunks]),
            num_micro_batches=np.array([self.num_micro_batches]),
            schedule=np.array([INTERLEAVED]),
        )


pipelines = some.builds(Pipeline, some.integers(2, 8), some.integers(2, 5), some.integers(1, 40))


def stage_of(pipeline: Pipeline, stage: int) -> StageGroup:
    is_first, is_last = stage == 0, stage == pipeline.num_stages - 1
    return StageGroup(*(np.array([value]) for value in (1, stage, 1, is_first, is_last)))


@given(pipelines, some.integers(1, 4), some.data())
def test_as_many_heavier_chunks_are_in_flight_as_the_schedule_shows(
    pipeline: Pipeline, heavier: int, data: some.DataObject
) -> None:
    """Where all groups are as large, on all stages but the last."""
    p, v, m = pipeline
    if heavier >= v or len(set(group_sizes(m, p))) > 1:
        return
    stage = data.draw(some.integers(0, p - 2))
    layers = chunk_layers(v + heavier, v, is_first_stage=stage == 0)
    held, most = 0, 0
    for action in interleaved(p, stage, m, v):
        held += (1 if action.kind == "forward" else -1) * (layers[action.chunk] - 1)
        most = max(most, held)
    plans = pipeline.plans()
    in_flight = chunks_in_flight(plans, np.array([stage]))
    assert heavier_in_flight(plans, stage_of(pipeline, stage), np.array([heavier]), in_flight)[0] == most


@given(pipelines)
def test_as_many_losses_wait_as_the_schedule_shows(pipeline: Pipeline) -> None:
    p, v, m = pipeline
    waiting, most = 0, 0
    for action in interleaved(p, p - 1, m, v):
        if action.chunk == v - 1:
            most = max(most, waiting)  # before the pass
            waiting += 1 if action.kind == "forward" else -1
    assert losses_of_smaller_groups(pipeline.plans())[0] == max(0, most - 1)
