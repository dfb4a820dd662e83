"""The seconds of each stage of a pipeline for one micro-batch, chunk by chunk, and after the last of them.

The same seconds as those of `estimate`, before its closed form puts them together (`step.schedule`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from conf.plan.chunks import chunk_layers
from conf.plan.setup import Setup
from train_core.costs.estimate import plan_of, setting_of
from train_core.costs.mixed import on_widest_link
from train_core.costs.setting import Floats, Plans, Setting
from train_core.costs.stages import StageGroup, each_stage, listed_stages
from train_core.costs.step.priced_stage import PricedStage
from train_core.costs.step.replicas import PricedReplicas
from train_core.costs.step.step_time import (
    Passes,
    hop_seconds,
    reduction_seconds,
    slower_share,
    stage_passes,
    update_seconds,
)
from train_core.costs.trainers import TRISWEEP, Implementation
from train_core.costs.work import Work, work_of


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Seconds of one micro-batch in one model chunk of a stage.

    Attributes:
        forward: the work alone, without collectives; `input_gradient` and `weight_gradient` likewise.
        forward_communication: what no work hides of collectives and of the transfer to the next stage.
    """

    forward: float
    forward_communication: float
    input_gradient: float
    weight_gradient: float
    backward_communication: float


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The seconds of one rank of a stage in a step.

    Attributes:
        chunks: for each model chunk of the stage, the seconds of a micro-batch.
        reduction: seconds of collectives over the replicas after its last backward pass.
        update: seconds of the optimizer.
        slowest_device: seconds by which the slowest of all devices is behind, for which all others wait.
    """

    layers: int
    chunks: tuple[PassSeconds, ...]
    reduction: float
    update: float
    slowest_device: float


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive stages on devices of one type."""

    setting: Setting
    plans: Plans
    work: Work
    stages: StageGroup

    @property
    def priced_stage(self) -> PricedStage:
        """All stages of the block in the columns of one priced stage."""
        return PricedStage(PricedReplicas(self.setting, self.plans), self.work, self.stages)

    def hop(self) -> float:
        """Seconds of the transfer to a neighbour on the same type of devices, for one chunk."""
        # `hop_seconds` are those of all chunks of a micro-batch.
        return float(hop_seconds(self.setting, self.plans, self.work)[0]) / self.num_chunks

    def hop_outside(self) -> float:
        """The same to a stage on another type of devices, as far as this type's link decides it."""
        return float(hop_seconds(on_widest_link(self.setting), self.plans, self.work)[0]) / self.num_chunks

    @property
    def num_chunks(self) -> int:
        return int(self.plans.virtual_pipeline_size[0])


def stage_times(setup: Setup, implementation: Implementation = TRISWEEP) -> tuple[StageTimes, ...]:
    """The stages of a plan, first to last, each rank on a device of its own."""
    blocks = list(_blocks(setup, implementation))
    # As in the closed form, the slowest device is behind by a share of the computation of the stage with the most.
    most = max(float(_compute_seconds(block).max()) for block in blocks)
    first = blocks[0]
    share = float(slower_share(first.setting, first.plans.world_size)[0])
    lag = float(first.plans.num_micro_batches[0]) * share * most
    times: list[StageTimes] = []
    for block, hops in zip(blocks, _hops(blocks), strict=True):
        times += _times(block, hops, lag)
    return tuple(times)


def _blocks(setup: Setup, implementation: Implementation) -> Iterator[_Block]:
    """One block of all stages, unless the job runs on several types of devices."""
    plans, every, start = plan_of(setup), each_stage(listed_stages(setup.layers_per_stage)), 0
    for block, count in zip(setup.blocks, setup.stages_per_block, strict=True):
        setting = setting_of(setup, implementation, block.cluster)
        yield _Block(setting, plans, work_of(setting, plans), every.rows(slice(start, start + count)))
        start += count


def _hops(blocks: Sequence[_Block]) -> Iterator[list[tuple[float, float]]]:
    """Yield, for each stage of each block, the transfers to the stage before it and to the one after it.

    A transfer between two types is as slow as the slower of their widest links.
    """
    between = [max(before.hop_outside(), after.hop_outside()) for before, after in pairwise(blocks)]
    for block, before, after in zip(blocks, [None, *between], [*between, None], strict=True):
        inside = block.hop()
        hops = [[inside, inside] for _ in block.stages.layers]
        hops[0][0] = inside if before is None else before
        hops[-1][1] = inside if after is None else after
        yield [(to_before, to_after) for to_before, to_after in hops]


def _compute_seconds(block: _Block) -> Floats:
    passes = stage_passes(block.priced_stage)
    return _columns(block.stages, passes.forward + passes.input_gradient + passes.weight_gradient)


def _times(block: _Block, hops: Sequence[tuple[float, float]], lag: float) -> Iterator[StageTimes]:
    stages = block.stages
    reductions = _columns(stages, reduction_seconds(block.priced_stage, _compute_seconds(block)))
    updates = _columns(stages, update_seconds(block.priced_stage))
    for index, (reduction, update) in enumerate(zip(reductions, updates, strict=True)):
        chunks = _chunks(block, index, *hops[index])
        yield StageTimes(int(stages.layers[index]), chunks, float(reduction), float(update), lag)


def _chunks(block: _Block, index: int, to_before: float, to_after: float) -> tuple[PassSeconds, ...]:
    """The chunks of one stage: layers by their number, the embedding with the first chunk, the head with the last."""
    stage = block.stages.rows(slice(index, index + 1))
    none = np.zeros_like(stage.is_first)
    whole = stage_passes(block.priced_stage.of(stage))
    without_ends = replace(stage, is_first=none, is_last=none)
    layers_alone = stage_passes(block.priced_stage.of(without_ends))
    layers = int(stage.layers[0])
    of_chunks = chunk_layers(layers, block.num_chunks, is_first_stage=bool(stage.start[0] == 0))
    # Of a single stage, all that is not layers is counted with the first chunk.
    end = 0 if stage.is_first[0] else block.num_chunks - 1
    return tuple(
        _pass_seconds(layers_alone, whole, share / max(layers, 1), number == end, (to_before, to_after))
        for number, share in enumerate(of_chunks)
    )


def _pass_seconds(layers: Passes, whole: Passes, share: float, has_end: bool, hops: tuple[float, float]) -> PassSeconds:
    """A share of the layers, and with it whatever of the stage is not layers where the chunk holds that."""

    def seconds(*names: str) -> float:
        return sum(_of_chunk(getattr(layers, name), getattr(whole, name), share, has_end) for name in names)

    return PassSeconds(
        forward=seconds("forward"),
        forward_communication=seconds("tensor_forward", "sharding_forward") + hops[1],
        input_gradient=seconds("input_gradient"),
        weight_gradient=seconds("weight_gradient"),
        backward_communication=seconds("tensor_backward", "sharding_backward") + hops[0],
    )


def _of_chunk(layers: Floats, whole: Floats, share: float, has_end: bool) -> float:
    of_layers, of_all = float(np.ravel(layers)[0]), float(np.ravel(whole)[0])
    # What a stage takes beyond its layers is that of its end: the embedding, or the last norm and the head.
    return share * of_layers + has_end * (of_all - of_layers)


def _columns(stages: StageGroup, column: Floats) -> Floats:
    """An entry for every stage, also where all have the same."""
    return np.broadcast_to(column, stages.layers.shape)
