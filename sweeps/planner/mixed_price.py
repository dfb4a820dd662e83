"""Prices of assignments of one pipeline to several types of devices, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

import numpy as np

from sweeps.planner.shard_work import ShardWork
from sweeps.planner.space import Space
from train_core.costs.memory import group_memory
from train_core.costs.schedule import ONE_F_ONE_B
from train_core.costs.setting import Booleans, Floats, Integers, Plans, Setting
from train_core.costs.stages import StageGroup
from train_core.costs.step_time import (
    Passes,
    StepColumns,
    hop_seconds,
    reduction_seconds,
    run_pipeline,
    stage_passes,
    sum_up,
    update_seconds,
)
from train_core.costs.work import Work


@dataclass(frozen=True, slots=True)
class MixedRows:
    """Assignments with the same sizes and order of types, in columns, (n,).

    Attributes:
        order: index of the type of each block of stages, first to last.
        layers: of each type, by its index, (n, k).
    """

    tensor_parallel_size: int
    data_parallel_size: int
    order: tuple[int, ...]
    micro_batch_size: Integers
    sequence_parallel: Booleans
    recompute: Integers
    zero_stage: Integers
    layers: Integers

    def rows(self, selection: Integers) -> MixedRows:
        """The selected ones, in that order."""
        columns = ("micro_batch_size", "sequence_parallel", "recompute", "zero_stage", "layers")
        return replace(self, **{name: getattr(self, name)[selection] for name in columns})


@dataclass(frozen=True, slots=True)
class _Stages:
    """Equal stages on one type.

    Attributes:
        heads_block: it is the first stage of a later block, and receives over the link between two types.
    """

    type_index: int
    group: StageGroup
    heads_block: bool


def stage_counts(spaces: Sequence[Space], tensor_parallel_size: int, data_parallel_size: int) -> list[int]:
    """Stages of each type's block, which uses all of its devices."""
    return [space.world_size // (tensor_parallel_size * data_parallel_size) for space in spaces]


def price_mixed(spaces: Sequence[Space], tables: Sequence[ShardWork], rows: MixedRows) -> StepColumns:
    """The step of every row."""
    counts = stage_counts(spaces, rows.tensor_parallel_size, rows.data_parallel_size)
    plans = mixed_plans(spaces[0], rows, sum(counts))
    return _step(spaces, plans, [table.of(plans) for table in tables], _stages(rows, counts), rows.order)


def mixed_plans(space: Space, rows: MixedRows, num_stages: int) -> Plans:
    same = np.ones_like(rows.micro_batch_size)
    d = rows.data_parallel_size
    return Plans(
        tensor_parallel_size=same * rows.tensor_parallel_size,
        pipeline_parallel_size=same * num_stages,
        virtual_pipeline_size=same,
        data_parallel_size=same * d,
        micro_batch_size=rows.micro_batch_size,
        num_micro_batches=space.global_batch_size // (d * rows.micro_batch_size),
        sequence_parallel=rows.sequence_parallel,
        zero_stage=rows.zero_stage,
        recompute=rows.recompute,
        schedule=same * ONE_F_ONE_B,
        first_stage_layers=same,  # the stages are given apart
        last_stage_layers=same,
    )


def _stages(rows: MixedRows, counts: Sequence[int]) -> list[_Stages]:
    """Groups of equal stages, first to last."""
    found: list[_Stages] = []
    start = 0
    for index in rows.order:
        found += block_stages(index, start, counts[index], sum(counts), rows.layers[:, index])
        start += counts[index]
    return found


def block_stages(index: int, start: int, count: int, num_stages: int, layers: Integers) -> list[_Stages]:
    """Of one type's block its first stage, the others with one layer more, the rest; the last stage of all alone.

    Args:
        layers: of the whole block, in columns of any shape.
    """
    base, more = layers // count, layers % count
    ends = start + count == num_stages
    inner = count - 1 - (1 if ends and count > 1 else 0)  # between the block's first stage and the last of all
    fuller = np.clip(more - 1, 0, inner)
    found = [
        _alone(index, start, base + (more > 0), start > 0, is_last=ends and count == 1),
        _several(index, start + 1, fuller, base + 1),
        _several(index, start + 1 + fuller, inner - fuller, base),
    ]
    if ends and count > 1:
        found.append(_alone(index, num_stages - 1, base, False, is_last=True))
    return [one for one in found if np.any(one.group.count > 0)]


def _alone(index: int, start: int, layers: Integers, heads_block: bool, *, is_last: bool) -> _Stages:
    same, none = np.ones_like(layers), np.zeros(layers.shape, dtype=bool)
    group = StageGroup(same, same * start, layers, none | (start == 0), none | is_last)
    return _Stages(index, group, heads_block)


def _several(index: int, start: Integers | int, count: Integers, layers: Integers) -> _Stages:
    none = np.zeros(layers.shape, dtype=bool)
    return _Stages(index, StageGroup(count, np.zeros_like(layers) + start, layers, none, none), False)


def _step(
    spaces: Sequence[Space], plans: Plans, works: Sequence[Work], stages: list[_Stages], order: tuple[int, ...]
) -> StepColumns:
    passes = [stage_passes(spaces[one.type_index].setting, plans, works[one.type_index], one.group) for one in stages]
    inside = [hop_seconds(space.setting, plans, work) for space, work in zip(spaces, works, strict=True)]
    hops = _hops(spaces, plans, works, stages, inside, order)
    groups = [one.group for one in stages]
    pipeline = run_pipeline(plans, groups, passes, hops, np.asarray(1.0))
    reduced, update = _after_pipeline(spaces, plans, works, stages, passes)
    return sum_up(pipeline, reduced, update, np.asarray(mixed_jitter(spaces)))


def _hops(
    spaces: Sequence[Space],
    plans: Plans,
    works: Sequence[Work],
    stages: list[_Stages],
    inside: list[Floats],
    order: tuple[int, ...],
) -> list[Floats]:
    """Of each group, the transfer to a neighbour: inside its type, or between two types for a block's first stage."""
    before = dict(zip(order[1:], order, strict=False))
    widest = [_on_widest_link(space.setting) for space in spaces]
    outside = [hop_seconds(setting, plans, work) for setting, work in zip(widest, works, strict=True)]
    return [
        np.maximum(outside[one.type_index], outside[before[one.type_index]])
        if one.heads_block
        else inside[one.type_index]
        for one in stages
    ]


def _on_widest_link(setting: Setting) -> Setting:
    """The same with nothing but the widest link: what leaves a cluster goes over it."""
    return replace(setting, cluster=setting.cluster.model_copy(update={"links": setting.cluster.links[-1:]}))


def _after_pipeline(
    spaces: Sequence[Space], plans: Plans, works: Sequence[Work], stages: list[_Stages], passes: list[Passes]
) -> tuple[Floats, Floats]:
    """Reduction and update of the block that is done last.

    A block's gradients are whole after the last backward of its first stage; those of later blocks are so earlier, by
    the backwards of all stages before them.
    """
    reduced: Floats = np.zeros(len(plans))
    update: Floats = np.zeros(len(plans))
    latest: Floats = np.full(len(plans), -np.inf)
    head_start: Floats = np.zeros(len(plans))
    for one, each in zip(stages, passes, strict=True):
        setting, work = spaces[one.type_index].setting, works[one.type_index]
        backward = each.input_gradient + each.weight_gradient
        if one.heads_block or bool(np.all(one.group.is_first)):
            own = reduction_seconds(setting, plans, work, one.group, each.forward + backward)
            own_update = update_seconds(setting, plans, work, one.group)
            later = own + own_update - head_start > latest
            latest = np.where(later, own + own_update - head_start, latest)
            reduced, update = np.where(later, own - head_start, reduced), np.where(later, own_update, update)
        head_start = head_start + one.group.count * (backward + each.tensor_backward)
    return np.maximum(reduced, 0.0), update


def mixed_jitter(spaces: Sequence[Space]) -> float:
    """Share of the step lost to the slowest rank, at the rate of the worse type over all nodes."""
    nodes = sum(space.world_size / space.setting.cluster.devices_per_node for space in spaces)
    return max(space.setting.cluster.efficiency.jitter for space in spaces) * log2(max(1.0, nodes))


def block_shortfall(
    setting: Setting, plans: Plans, work: Work, stages: list[_Stages]
) -> tuple[Integers, Integers, Integers]:
    """What the worst of these stages lacks on its own device (negative: leaves), its index, and what it needs."""
    least = np.iinfo(np.int64).min
    shortfall: Integers = np.asarray(least)
    worst, needed = np.asarray(0), np.asarray(0)
    for one in stages:
        total = group_memory(setting, plans, work, one.group).total_bytes
        lacks = np.where(one.group.count > 0, total - setting.cluster.device.memory_bytes, least)
        fuller = lacks > shortfall
        shortfall = np.where(fuller, lacks, shortfall)
        worst, needed = np.where(fuller, one.group.start, worst), np.where(fuller, total, needed)
    return shortfall, worst, needed


def mixed_memory(
    spaces: Sequence[Space], tables: Sequence[ShardWork], rows: MixedRows
) -> tuple[Integers, Integers, Integers]:
    """Of every row what its worst stage lacks, its index, and what it needs."""
    counts = stage_counts(spaces, rows.tensor_parallel_size, rows.data_parallel_size)
    plans = mixed_plans(spaces[0], rows, sum(counts))
    stages = _stages(rows, counts)
    found = [
        block_shortfall(space.setting, plans, table.of(plans), [one for one in stages if one.type_index == index])
        for index, (space, table) in enumerate(zip(spaces, tables, strict=True))
    ]
    shortfall, worst, needed = found[0]
    for other in found[1:]:
        fuller = other[0] > shortfall
        shortfall, worst, needed = (
            np.where(fuller, theirs, ours) for theirs, ours in zip(other, (shortfall, worst, needed), strict=True)
        )
    return shortfall, worst, needed
