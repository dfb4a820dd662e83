"""What is counted of uneven chunks against the schedules themselves, pass by pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from conf.plan.chunks import chunk_layers, group_sizes
from costs.stages import StageGroup
from costs.step.in_flight import chunks_in_flight, heavier_in_flight, losses_of_smaller_groups
from costs.step.schedule import INTERLEAVED
from costs.step.step_time import overlapped_micro_batches
from tests.costs.priced import setting_of, stage_memories, with_model
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


@given(pipelines)
def test_the_other_chunks_of_the_last_group_run_beside_the_reduction_of_the_first(pipeline: Pipeline) -> None:
    p, v, m = pipeline
    backward = [action.chunk for action in interleaved(p, 0, m, v) if action.kind == "backward"]
    first = max(range(len(backward)), key=lambda number: (backward[number] == v - 1, number))
    beside = (len(backward) - 1 - first) / v
    assert overlapped_micro_batches(pipeline.plans())[0] == max(1.0, beside)


@pytest.mark.parametrize("chunks", [3, 4], ids=["uneven chunks", "even chunks"])
def test_a_layer_without_experts_keeps_less_in_uneven_chunks_too(chunks: int) -> None:
    deepseek = setting_of("deepseek-v2", "dgx-h100", trainer="megatron-core")
    assert deepseek.model.experts is not None
    sizes: dict[str, int] = {"pipeline_parallel_size": 8, "first_stage_layers": 8, "num_micro_batches": 16}
    sizes["virtual_pipeline_size"] = chunks

    def activations(num_dense_layers: int) -> int:
        experts = deepseek.model.experts and deepseek.model.experts.model_copy(
            update={"num_dense_layers": num_dense_layers}
        )
        setting = with_model(deepseek, experts=experts)
        return int(stage_memories(setting, schedule="interleaved", **sizes).activations_bytes[0])

    assert activations(1) < activations(0)
