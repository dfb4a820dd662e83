"""The price and the memory of assignments of one job to several types of devices, in columns, (n,).

Assignments with the same sizes and the same order of types are priced together. The stages of each type's block come in
groups of equal ones, and `train_core.costs.mixed` has the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sweeps.planner.plans.shard_work import ShardWork
from sweeps.planner.plans.space import Space
from train_core.costs.mixed import StagesOnType, TypeOfDevices, block_shortfall, mixed_step
from train_core.costs.setting import Integers, Plans
from train_core.costs.stages import StageGroup
from train_core.costs.terms import StepColumns


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


def stage_counts(spaces: Sequence[Space], tensor_parallel_size: int, data_parallel_size: int) -> list[int]:
    """The number of stages of each type's block, which uses all devices of that type."""
    return [space.world_size // (tensor_parallel_size * data_parallel_size) for space in spaces]


def price_mixed(spaces: Sequence[Space], tables: Sequence[ShardWork], rows: MixedRows) -> StepColumns:
    """Seconds of a step of every assignment, by term."""
    works = [table.of(rows.plans) for table in tables]
    types = [TypeOfDevices(space.setting, space.world_size) for space in spaces]
    return mixed_step(types, rows.plans, works, _stages(rows))


def _stages(rows: MixedRows) -> list[StagesOnType]:
    """The whole pipeline in groups of equal stages, first to last."""
    groups: list[StagesOnType] = []
    start = 0
    for index in rows.order:
        groups += block_stages(index, start, rows.counts[index], sum(rows.counts), rows.layers[:, index])
        start += rows.counts[index]
    return groups


def block_stages(index: int, start: int, count: int, num_stages: int, layers: Integers) -> list[StagesOnType]:
    """One type's block in groups: its first stage, those with one layer more, and those with one less.

    The last stage of the whole pipeline is a group of its own, since it holds the head.

    Args:
        layers: of the whole block, in columns of any shape.
    """
    base, fuller_stages = layers // count, layers % count
    ends = start + count == num_stages
    # The block's first stage and the pipeline's last are groups of their own; these are the stages between them.
    inner = count - 1 - (1 if ends and count > 1 else 0)
    # The block's first stage is the first that takes a layer more, so that one fewer is left for those between.
    fuller = np.clip(fuller_stages - 1, 0, inner)
    groups = [
        _single_stage(index, start, base + (fuller_stages > 0), start > 0, is_last=ends and count == 1),
        _equal_stages(index, start + 1, fuller, base + 1),
        _equal_stages(index, start + 1 + fuller, inner - fuller, base),
    ]
    if ends and count > 1:
        groups.append(_single_stage(index, num_stages - 1, base, False, is_last=True))
    return [stages for stages in groups if np.any(stages.group.count > 0)]


def _single_stage(index: int, start: int, layers: Integers, heads_block: bool, *, is_last: bool) -> StagesOnType:
    same, none = np.ones_like(layers), np.zeros(layers.shape, dtype=bool)
    group = StageGroup(same, same * start, layers, none | (start == 0), none | is_last)
    return StagesOnType(index, group, heads_block)


def _equal_stages(index: int, start: Integers | int, count: Integers, layers: Integers) -> StagesOnType:
    none = np.zeros(layers.shape, dtype=bool)
    return StagesOnType(index, StageGroup(count, np.zeros_like(layers) + start, layers, none, none), False)


def mixed_memory(
    spaces: Sequence[Space], tables: Sequence[ShardWork], rows: MixedRows
) -> tuple[Integers, Integers, Integers]:
    """Return the bytes that each assignment's worst stage lacks, that stage's index, and the bytes that it needs."""
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
