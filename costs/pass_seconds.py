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
from costs.estimate import plan_of, setting_of
from costs.mixed import on_widest_link
from costs.setting import Floats, Setting
from costs.stages import each_stage, listed_stages
from costs.step.priced_stage import PricedStage
from costs.step.replicas import PricedReplicas
from costs.step.step_time import (
    Passes,
    hop_seconds,
    reduction_seconds,
    slower_share,
    stage_passes,
    update_seconds,
)
from costs.trainers import Implementation
from costs.work import work_of


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


def stage_times(setup: Setup, implementation: Implementation) -> tuple[StageTimes, ...]:
    """The stages of a plan, first to last, each rank on a device of its own."""
    blocks = list(_blocks(setup, implementation))
    # As in the closed form, the slowest device is behind by a share of the computation of the stage with the most.
    most = max(float(stage_passes(block).at_work.max()) for block in blocks)
    first = blocks[0]
    share = float(slower_share(first.setting, first.plans.world_size)[0])
    lag = float(first.plans.num_micro_batches[0]) * share * most
    times: list[StageTimes] = []
    for block, hops in zip(blocks, _hops(blocks), strict=True):
        times += _times(block, hops, lag)
    return tuple(times)


def _blocks(setup: Setup, implementation: Implementation) -> Iterator[PricedStage]:
    """All stages on each type of devices, in the columns of one priced stage; most jobs have one type."""
    plans, every, start = plan_of(setup), each_stage(listed_stages(setup.layers_per_stage)), 0
    for block, count in zip(setup.blocks, setup.stages_per_block, strict=True):
        setting = setting_of(setup, implementation, block.cluster)
        own = every.rows(slice(start, start + count))
        yield PricedStage(PricedReplicas(setting, plans), work_of(setting, plans), own)
        start += count


def _hop(block: PricedStage, over: Setting | None = None) -> float:
    """Seconds of a transfer from a stage of the block, for one chunk; `over` is as for `hop_seconds`."""
    # `hop_seconds` are those of all chunks of a micro-batch.
    hop = hop_seconds(block.setting, block.plans, block.work, over=over)
    return float(hop[0]) / int(block.plans.virtual_pipeline_size[0])


def _hops(blocks: Sequence[PricedStage]) -> Iterator[list[tuple[float, float]]]:
    """Yield, for each stage of each block, the transfers to the stage before it and to the one after it.

    A transfer between two types is as slow as the slower of their widest links.
    """
    outside = [_hop(block, on_widest_link(block.setting)) for block in blocks]
    between = [max(before, after) for before, after in pairwise(outside)]
    for block, before, after in zip(blocks, [None, *between], [*between, None], strict=True):
        inside = _hop(block)
        hops = [[inside, inside] for _ in block.group.layers]
        hops[0][0] = inside if before is None else before
        hops[-1][1] = inside if after is None else after
        yield [(to_before, to_after) for to_before, to_after in hops]


def _times(block: PricedStage, hops: Sequence[tuple[float, float]], lag: float) -> Iterator[StageTimes]:
    reductions = _columns(block, reduction_seconds(block, stage_passes(block)))
    updates = _columns(block, update_seconds(block))
    for index, (reduction, update) in enumerate(zip(reductions, updates, strict=True)):
        chunks = _chunks(block, index, *hops[index])
        yield StageTimes(int(block.group.layers[index]), chunks, float(reduction), float(update), lag)


def _chunks(block: PricedStage, index: int, to_before: float, to_after: float) -> tuple[PassSeconds, ...]:
    """The chunks of one stage: layers by their number, the embedding with the first chunk, the head with the last."""
    stage, num_chunks = block.group.rows(slice(index, index + 1)), int(block.plans.virtual_pipeline_size[0])
    none = np.zeros_like(stage.is_first)
    whole = stage_passes(block.of(stage))
    layers_alone = stage_passes(block.of(replace(stage, is_first=none, is_last=none)))
    layers = int(stage.layers[0])
    of_chunks = chunk_layers(layers, num_chunks, is_first_stage=bool(stage.start[0] == 0))
    # Of a single stage, all that is not layers is counted with the first chunk.
    end = 0 if stage.is_first[0] else num_chunks - 1
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


def _columns(block: PricedStage, column: Floats) -> Floats:
    """An entry for every stage, also where all have the same."""
    return np.broadcast_to(column, block.group.layers.shape)
