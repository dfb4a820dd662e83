"""Prices of assignments of one pipeline to several types of devices, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

import numpy as np

from sweeps.planner.shard_work import ShardWork
from sweeps.planner.space import Space
from train_core.costs.memory import group_memory
from train_core.costs.setting import Booleans, Floats, Integers, Plans, Setting, plain_columns
from train_core.costs.stages import StageGroup
from train_core.costs.step_time import (
    Passes,
    hop_seconds,
    reduction_seconds,
    run_pipeline,
    stage_passes,
    sum_up,
    update_seconds,
)
from train_core.costs.terms import StepColumns
from train_core.costs.work import Work


@dataclass(frozen=True, slots=True)
class MixedRows:
    """Assignments with the same sizes and order of types, in columns, (n,).

    Attributes:
        plans: what all types have in common. The stages are described separately, by `order`, `counts` and `layers`.
        order: index of the type of each block of stages, first to last.
        counts: number of stages of each type's block, by the type's index.
        layers: number of layers of each type, by the type's index, (n, k).
    """

    plans: Plans
    order: tuple[int, ...]
    counts: Sequence[int]
    layers: Integers

    def rows(self, selection: Integers) -> MixedRows:
        """The selected assignments, in that order."""
        return replace(self, plans=self.plans.rows(selection), layers=self.layers[selection])


@dataclass(frozen=True, slots=True)
class _Stages:
    """A group of equal stages that run on one type of devices.

    Attributes:
        heads_block: whether it is the first stage of a later block, which receives over the link between two types.
    """

    type_index: int
    group: StageGroup
    heads_block: bool


def stage_counts(spaces: Sequence[Space], tensor_parallel_size: int, data_parallel_size: int) -> list[int]:
    """The number of stages of each type's block, which uses all devices of that type."""
    return [space.world_size // (tensor_parallel_size * data_parallel_size) for space in spaces]


def price_mixed(spaces: Sequence[Space], tables: Sequence[ShardWork], rows: MixedRows) -> StepColumns:
    """Seconds of a step of every assignment, by term."""
    works = [table.of(rows.plans) for table in tables]
    return _step(spaces, rows.plans, works, _stages(rows), rows.order)


def mixed_plans(
    space: Space, t: int, d: int, num_stages: int, shards: tuple[Integers, Booleans, Integers], zero_stage: Integers
) -> Plans:
    """The plans that all types have in common: 1F1B without chunks. The layers of the stages are stated elsewhere.

    Args:
        shards: micro-batch, sequence parallelism and index of the recomputation, each of one shape.
    """
    micro_batch_size, sequence_parallel, recompute = shards
    same = np.ones_like(micro_batch_size)
    # The layers of the first and the last stage are placeholders: prices take them from the groups of stages instead.
    chosen = {
        "tensor_parallel_size": same * t,
        "pipeline_parallel_size": same * num_stages,
        "data_parallel_size": same * d,
        "micro_batch_size": micro_batch_size,
        "num_micro_batches": space.global_batch_size // (d * micro_batch_size),
        "sequence_parallel": sequence_parallel,
        "zero_stage": zero_stage,
        "recompute": recompute,
        "first_stage_layers": same,
        "last_stage_layers": same,
    }
    return Plans(**{**plain_columns(same.shape), **chosen})


def _stages(rows: MixedRows) -> list[_Stages]:
    """The whole pipeline in groups of equal stages, first to last."""
    groups: list[_Stages] = []
    start = 0
    for index in rows.order:
        groups += block_stages(index, start, rows.counts[index], sum(rows.counts), rows.layers[:, index])
        start += rows.counts[index]
    return groups


def block_stages(index: int, start: int, count: int, num_stages: int, layers: Integers) -> list[_Stages]:
    """One type's block in groups: its first stage, those with one layer more, and those with one less.

    The last stage of the whole pipeline is a group of its own, since it holds the head.

    Args:
        layers: of the whole block, in columns of any shape.
    """
    base, fuller_stages = layers // count, layers % count
    ends = start + count == num_stages
    # The block's first stage and the pipeline's last are groups of their own; these are the stages between them.
    inner = count - 1 - (1 if ends and count > 1 else 0)
    fuller = np.clip(fuller_stages - 1, 0, inner)
    groups = [
        _alone(index, start, base + (fuller_stages > 0), start > 0, is_last=ends and count == 1),
        _several(index, start + 1, fuller, base + 1),
        _several(index, start + 1 + fuller, inner - fuller, base),
    ]
    if ends and count > 1:
        groups.append(_alone(index, num_stages - 1, base, False, is_last=True))
    return [stages for stages in groups if np.any(stages.group.count > 0)]


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
    passes = [
        stage_passes(spaces[each.type_index].setting, plans, works[each.type_index], each.group) for each in stages
    ]
    inside = [hop_seconds(space.setting, plans, work) for space, work in zip(spaces, works, strict=True)]
    hops = _hops(spaces, plans, works, stages, inside, order)
    groups = [each.group for each in stages]
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
    """For each group, the transfer to a neighbour: inside its type, or between two types for a block's first stage."""
    # A transfer between two types is as slow as the slower of their widest links.
    before = dict(zip(order[1:], order, strict=False))
    widest = [_on_widest_link(space.setting) for space in spaces]
    outside = [hop_seconds(setting, plans, work) for setting, work in zip(widest, works, strict=True)]
    return [
        np.maximum(outside[each.type_index], outside[before[each.type_index]])
        if each.heads_block
        else inside[each.type_index]
        for each in stages
    ]


def _on_widest_link(setting: Setting) -> Setting:
    """The setting with the widest link alone, since whatever leaves a cluster goes over that link."""
    return replace(setting, cluster=setting.cluster.model_copy(update={"links": setting.cluster.links[-1:]}))


def _after_pipeline(
    spaces: Sequence[Space], plans: Plans, works: Sequence[Work], stages: list[_Stages], passes: list[Passes]
) -> tuple[Floats, Floats]:
    """Seconds of the reduction and of the update of the block that finishes last.

    A block's gradients are complete after the last backward pass of its first stage. The last backward pass runs from
    the end of the pipeline to its start, so later blocks finish earlier, by the backward passes of all stages before
    them, and can use that head start for their reduction.
    """
    reduced: Floats = np.zeros(len(plans))
    update: Floats = np.zeros(len(plans))
    latest: Floats = np.full(len(plans), -np.inf)
    head_start: Floats = np.zeros(len(plans))
    for each, seconds in zip(stages, passes, strict=True):
        setting, work = spaces[each.type_index].setting, works[each.type_index]
        backward = seconds.input_gradient + seconds.weight_gradient
        if each.heads_block or bool(np.all(each.group.is_first)):
            own = reduction_seconds(setting, plans, work, each.group, seconds.forward + backward)
            own_update = update_seconds(setting, plans, work, each.group)
            later = own + own_update - head_start > latest
            latest = np.where(later, own + own_update - head_start, latest)
            reduced, update = np.where(later, own - head_start, reduced), np.where(later, own_update, update)
        head_start = head_start + each.group.count * (backward + seconds.tensor_backward)
    return np.maximum(reduced, 0.0), update


def mixed_jitter(spaces: Sequence[Space]) -> float:
    """Share of the step lost to the slowest rank, with the worst type's jitter for the nodes of all types."""
    nodes = sum(space.world_size / space.setting.cluster.devices_per_node for space in spaces)
    return max(space.setting.cluster.efficiency.jitter for space in spaces) * log2(max(1.0, nodes))


def block_shortfall(
    setting: Setting, plans: Plans, work: Work, stages: list[_Stages]
) -> tuple[Integers, Integers, Integers]:
    """Bytes that the worst of these stages lacks on its device (negative: bytes left), its index, and what it needs."""
    # Devices of several types differ in memory, so the worst stage is the one that lacks most, not the fullest.
    least = np.iinfo(np.int64).min
    shortfall: Integers = np.asarray(least)
    worst, needed = np.asarray(0), np.asarray(0)
    for each in stages:
        total = group_memory(setting, plans, work, each.group).total_bytes
        lacks = np.where(each.group.count > 0, total - setting.cluster.device.memory_bytes, least)
        fuller = lacks > shortfall
        shortfall = np.where(fuller, lacks, shortfall)
        worst, needed = np.where(fuller, each.group.start, worst), np.where(fuller, total, needed)
    return shortfall, worst, needed


def mixed_memory(
    spaces: Sequence[Space], tables: Sequence[ShardWork], rows: MixedRows
) -> tuple[Integers, Integers, Integers]:
    """For every assignment, the bytes that its worst stage lacks, that stage's index, and the bytes that it needs."""
    plans, stages = rows.plans, _stages(rows)
    of_types = [
        block_shortfall(space.setting, plans, table.of(plans), [each for each in stages if each.type_index == index])
        for index, (space, table) in enumerate(zip(spaces, tables, strict=True))
    ]
    shortfall, worst, needed = of_types[0]
    for other in of_types[1:]:
        fuller = other[0] > shortfall
        shortfall, worst, needed = (
            np.where(fuller, theirs, ours) for theirs, ours in zip(other, (shortfall, worst, needed), strict=True)
        )
    return shortfall, worst, needed
