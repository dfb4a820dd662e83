"""Every legal plan of one model on one number of devices, in blocks of columns that numpy broadcasts.

A block holds the plans of one tensor-, context- and pipeline-parallel size in one setting: all shards (expert-parallel
size, micro-batch, sequence parallelism, recomputation) x all layouts (schedule, chunks, spread of layers) x all ZeRO
stages. The plans of one expert-parallel size are a family; their shards stand side by side.
What depends on the ZeRO stage only has the shape (z, 1, 1), on the shard only (1, s, 1), on the layout only (1, 1, l),
so that it is computed once. Legal is what `conf.plan.experiment` accepts; a test feeds plans from here to there and
back.

Blocks come in the order tensor, context, pipeline size; of each, one for every ZeRO group, offloading and order of
ranks. Of plans that are equally fast the first one stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from conf.plan.knobs import SCHEDULES
from conf.plan.trainer_limits import FEW_MICRO_BATCHES, IRREGULAR_GROUPS, UNEQUAL_CHUNKS, UNEVEN_GROUPS
from costs.setting import Booleans, Integers, Plans, Setting, plain_columns
from costs.step.schedule import INTERLEAVED
from sweeps.planner.plans.runnable import StageLayout, runs
from sweeps.planner.plans.space import (
    RECOMPUTE_EVERY,
    Family,
    Placing,
    ShardChoice,
    Sizes,
    Space,
    context_parallel_sizes,
    expert_parallel_sizes,
    keeps_order,
    layouts,
    pipeline_parallel_sizes,
    placings,
    shards_of,
    tensor_parallel_sizes,
    zero_stages,
)

Selection: TypeAlias = Integers | slice


@dataclass(frozen=True, slots=True)
class PlanGrid:
    """Plans of the same sizes, crossed: ZeRO stages x shards x layouts.

    Attributes:
        setting: that of the space, where optimizer states and ranks are placed as in these plans.
        plans: columns of the shapes (z, 1, 1), (1, s, 1) and (1, 1, l).
        legal: which of them can exist, (1, s, l); it does not depend on the ZeRO stage.
    """

    setting: Setting
    sizes: Sizes
    plans: Plans
    legal: Booleans

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.plans.zero_stage.size, *self.legal.shape[1:])

    @property
    def num_strategies(self) -> int:
        return int(np.count_nonzero(self.legal)) * self.shape[0]

    @property
    def families(self) -> list[tuple[Family, slice]]:
        """Each family that has plans here, and the places of its shards."""
        experts = np.broadcast_to(self.plans.expert_parallel_size, self.legal.shape[:2] + (1,)).ravel()
        starts = [0, *(np.flatnonzero(np.diff(experts)) + 1).tolist(), len(experts)]
        return [
            (Family(self.sizes, int(experts[start])), slice(start, stop))
            for start, stop in pairwise(starts)
            if start < stop
        ]

    def part(self, stages: Selection, shards: Selection, layouts: Selection) -> PlanGrid:
        columns = (_part(getattr(self.plans, name), stages, shards, layouts) for name in Plans.__slots__)
        return replace(self, plans=Plans(*columns), legal=self.legal[:, shards][:, :, layouts])

    def rows(self, index: Integers) -> Plans:
        """Plans by their number in the block, as columns, (n,)."""
        where = np.unravel_index(index, self.shape)
        return Plans(*(np.broadcast_to(getattr(self.plans, name), self.shape)[where] for name in Plans.__slots__))


def _part(column: Any, *selections: Selection) -> Any:
    """The selected entries of a column, which has one entry along the axes on which it does not depend."""
    for axis, selection in enumerate(selections):
        # An axis of length 1 stands for all entries and stays, or numpy could no longer broadcast it.
        if column.shape[axis] > 1:
            column = column[(*(slice(None),) * axis, selection)]
    return column


def blocks(space: Space) -> Iterator[PlanGrid]:
    """The whole space: every legal plan in exactly one block."""
    for sizes in all_sizes(space):
        yield from _blocks_of(space, sizes, expert_parallel_sizes(space, sizes))


def blocks_of(space: Space, family: Family, micro_batch_sizes: Collection[int] | None = None) -> Iterator[PlanGrid]:
    """The plans of one family, a block for each placing.

    Args:
        micro_batch_sizes: leave out all others; None leaves out none.
    """
    return _blocks_of(space, family.sizes, [family.expert], micro_batch_sizes)


def _blocks_of(
    space: Space, sizes: Sizes, experts: Sequence[int], micro_batch_sizes: Collection[int] | None = None
) -> Iterator[PlanGrid]:
    crossed = _cross(space, sizes, experts, micro_batch_sizes)
    if crossed is None:
        return
    for placing in placings(space, sizes):
        block = _block_in(space, sizes, placing, *crossed)
        if block is not None:
            yield block


def families(space: Space) -> Iterator[Family]:
    for sizes in all_sizes(space):
        yield from (Family(sizes, expert) for expert in expert_parallel_sizes(space, sizes))


def all_sizes(space: Space) -> Iterator[Sizes]:
    """Sizes whose product is the number of devices, the fewest tensor ranks first."""
    for t in tensor_parallel_sizes(space):
        for c in context_parallel_sizes(space, t):
            for p in pipeline_parallel_sizes(space, t * c):
                d = space.world_size // (t * c * p)
                sizes = Sizes(t, c, p, d)
                if space.global_batch_size % d or not space.allowed_values("data_parallel_size", [d]):
                    continue
                if space.allowed_values("parallel.num_replicas", [sizes.num_replicas], **sizes.several):
                    yield sizes


def _block_in(space: Space, sizes: Sizes, placing: Placing, plans: Plans, legal: Booleans) -> PlanGrid | None:
    """The block of these plans in one placing; None where nothing goes with it."""
    stages = zero_stages(space, sizes, offload=placing.offload_optimizer)
    # Groups share out what ZeRO shares out, so that without ZeRO there are none.
    if placing.zero_group_size is not None and "zero_stage" not in space.pinned:
        stages = [stage for stage in stages if stage > 0]
    if not stages:
        return None
    setting = space.setting
    if placing != (setting.zero_group_size, setting.offload_optimizer, setting.pipeline_before_data):
        setting = replace(setting, **placing._asdict())
    block = PlanGrid(setting, sizes, replace(plans, zero_stage=_column(stages, (-1, 1, 1))), legal)
    others = [own for family, own in block.families if not keeps_order(space, family, placing.pipeline_before_data)]
    if others:
        block = replace(block, legal=legal.copy())
        for own in others:
            block.legal[:, own] = False
    return block if block.legal.any() else None


def _cross(
    space: Space, sizes: Sizes, experts: Sequence[int], micro_batch_sizes: Collection[int] | None
) -> tuple[Plans, Booleans] | None:
    """Shards x layouts of these sizes, and which of them can exist; None where none can."""
    shards, arranged = shards_of(space, sizes.tensor, sizes.data, sizes.context), layouts(space, sizes.pipeline)
    if micro_batch_sizes is not None:
        shards = [shard for shard in shards if shard.micro_batch_size in micro_batch_sizes]
    if not (shards and arranged and experts):
        return None
    shard, layout = _shard_columns(shards), _layout_columns(arranged)
    m = space.global_batch_size // (sizes.data * shard["micro_batch_size"])
    same = {
        "tensor_parallel_size": sizes.tensor,
        "context_parallel_size": sizes.context,
        "pipeline_parallel_size": sizes.pipeline,
        "data_parallel_size": sizes.data,
    }
    columns = {name: _column([size], (1, 1, 1)) for name, size in same.items()}
    plans = Plans(**{**plain_columns((1, 1, 1)), **columns, "num_micro_batches": m, **shard, **layout})
    legal = _legal(space, plans, _column([layout.chunk_layers for layout in arranged], (1, 1, -1)))
    plans, legal = _beside_experts(plans, legal, experts)
    return (plans, legal) if legal.any() else None


def _beside_experts(plans: Plans, legal: Booleans, experts: Sequence[int]) -> tuple[Plans, Booleans]:
    """The plans with each of these expert-parallel sizes, one after the other along the shards."""
    columns = {name: getattr(plans, name) for name in Plans.__slots__}
    alike = {name: np.tile(each, (1, len(experts), 1)) for name, each in columns.items() if each.shape[1] > 1}
    # Of a single size the column has length 1, which keeps all that is computed from it small.
    of_shards = np.repeat(experts, legal.shape[1] if len(experts) > 1 else 1).tolist()
    plans = replace(plans, **alike, expert_parallel_size=_column(of_shards, (1, -1, 1)))
    # Experts on other ranks would be sent every token by each of the tensor ranks that hold it (conf.plan.expert_axis).
    sends_once = plans.sequence_parallel | (plans.tensor_parallel_size == 1) | (plans.expert_parallel_size == 1)
    return plans, np.tile(legal, (1, len(experts), 1)) & sends_once


def _legal(space: Space, plans: Plans, chunk_layers: Integers) -> Booleans:
    """Mark the plans that can exist and differ from all others. All else is legal by construction.

    Some trainers interleave equal chunks alone, and micro-batches in groups of as many as there are stages, or have
    schedules that take no fewer micro-batches than stages. Recomputing
    in every n-th layer is another plan only where the fullest chunk then has fewer such layers than with the next
    smaller n.
    """
    legal: Booleans = np.ones((1, plans.micro_batch_size.size, plans.schedule.size), dtype=bool)
    if not runs(space.setting.implementation, UNEQUAL_CHUNKS, True):
        equal = chunk_layers * plans.virtual_pipeline_size * plans.pipeline_parallel_size
        legal = legal & ((plans.schedule != INTERLEAVED) | (equal == space.setting.model.num_layers))
    if not runs(space.setting.implementation, UNEVEN_GROUPS, True):
        # All groups have as many micro-batches as there are stages where the latter divides the former.
        whole = plans.num_micro_batches % plans.pipeline_parallel_size == 0
        legal = legal & ((plans.schedule != INTERLEAVED) | whole)
    if not runs(space.setting.implementation, IRREGULAR_GROUPS, True):
        num_groups = np.maximum(plans.num_micro_batches // plans.pipeline_parallel_size, 1)
        larger = plans.num_micro_batches % num_groups  # of the groups have a micro-batch more than the others
        legal = legal & ((plans.schedule != INTERLEAVED) | (larger == 0) | (larger == num_groups - 1))
    few = plans.num_micro_batches < plans.pipeline_parallel_size
    for index, schedule in enumerate(SCHEDULES):
        if not runs(space.setting.implementation, FEW_MICRO_BATCHES, True, space.features(schedule)):
            legal = legal & ~(few & (plans.schedule == index))
    if "recompute_every" in space.pinned:
        return legal
    every = plans.recompute_every
    smaller = np.array((0, *RECOMPUTE_EVERY))[np.searchsorted(RECOMPUTE_EVERY, every)]
    # A chunk of n layers recomputes in n / every of them, rounded up.
    fewer = -(-chunk_layers // every) < -(-chunk_layers // np.maximum(smaller, 1))
    return legal & ((every == 1) | fewer)


def _shard_columns(shards: Sequence[ShardChoice]) -> dict[str, Any]:
    columns = dict(zip(ShardChoice._fields, zip(*shards, strict=True), strict=True))
    return {name: np.array(values).reshape((1, -1, 1)) for name, values in columns.items()}


def _layout_columns(arranged: Sequence[StageLayout]) -> dict[str, Integers]:
    names = {
        "schedule": "schedule",
        "virtual_pipeline_size": "num_chunks",
        "first_stage_layers": "first_stage_layers",
        "last_stage_layers": "last_stage_layers",
    }
    return {
        column: _column([getattr(layout, name) for layout in arranged], (1, 1, -1)) for column, name in names.items()
    }


def _column(values: Sequence[int], shape: tuple[int, ...]) -> Integers:
    return np.array(values, dtype=np.int64).reshape(shape)
