"""The work of ranks for every shard that a search can meet. It is priced once, and each block looks it up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conf.types.recompute import RECOMPUTES
from costs.layer.shard import NONE, Shard
from costs.setting import Booleans, Integers, Plans, Setting
from costs.work import Work, recompute_by_layer, shard_work
from sweeps.planner.plans.space import (
    Sizes,
    Space,
    context_parallel_sizes,
    expert_parallel_sizes,
    priced_batch_sizes,
    tensor_parallel_sizes,
)

PARAMETERS = (
    "layer_parameters",
    "dense_layer_parameters",
    "expert_parameters",
    "embedding_parameters",
    "token_embedding_parameters",
)


SHARD_SIZES = ("context_parallel_size", "expert_parallel_size", "tensor_parallel_size", "micro_batch_size")
"""The sizes of a shard, in the order of the axes of the table."""


@dataclass(frozen=True, slots=True)
class ShardWork:
    """A table over all sizes of a shard, SHARD_SIZES ascending, x sequence parallelism x recomputation."""

    work: Work
    sizes: tuple[Integers, ...]

    @property
    def micro_batch_sizes(self) -> Integers:
        return self.sizes[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in which a column of the rows has an axis for each choice, (c, e, t, b, 2, r)."""
        return (*map(len, self.sizes), 2, len(RECOMPUTES))

    def places(self, *sizes: Integers | int) -> tuple[Integers, ...]:
        """The places of these sizes along the axes of the table, of as many of SHARD_SIZES as are given."""
        return tuple(np.searchsorted(known, size) for known, size in zip(self.sizes, sizes, strict=False))

    def of(self, plans: Plans) -> Work:
        """The work of each plan, in the shape that its shard has in `plans`; parameters in that of its sizes."""
        shard = [getattr(plans, name) for name in SHARD_SIZES]
        rows = self._rows(shard, plans.sequence_parallel, plans.recompute)
        if recompute_by_layer(plans):
            plain = self._rows(shard, plans.sequence_parallel, np.full_like(plans.recompute, NONE)).layer
            rows = replace(rows, plain_layer=plain)
        # Parameters do not depend on the micro-batch: its first row stands for all. In their smaller shape, all that is
        # computed from them stays small too.
        first = self._numbers([*shard[:-1], self.micro_batch_sizes[0]]) * (2 * len(RECOMPUTES))
        return replace(rows, **{name: getattr(self.work, name)[first] for name in PARAMETERS})

    def of_shards(
        self,
        tensor_parallel_size: Integers | int,
        micro_batch_size: Integers,
        sequence_parallel: Integers | Booleans,
        recompute: Integers,
    ) -> Work:
        """The work of shards that split neither sequences nor experts, in the shape that their choices broadcast to."""
        return self._rows([1, 1, tensor_parallel_size, micro_batch_size], sequence_parallel, recompute)

    def _rows(
        self, sizes: Sequence[Integers | int], sequence_parallel: Integers | Booleans, recompute: Integers
    ) -> Work:
        # The number of a row, digit by digit in the order of the axes in which `price_shards` crosses the choices.
        return self.work.rows((self._numbers(sizes) * 2 + sequence_parallel) * len(RECOMPUTES) + recompute)

    def _numbers(self, sizes: Sequence[Integers | int]) -> Integers:
        number: Integers = np.asarray(0)
        for place, known in zip(self.places(*sizes), self.sizes, strict=True):
            number = number * len(known) + place
        return number


def price_all_shards(spaces: Sequence[Space]) -> ShardWork:
    """The table of all shards of spaces that share model, cluster, batch and pins."""
    tensor = _union(tensor_parallel_sizes(space) for space in spaces)
    context = _union(context_parallel_sizes(space, t) for space in spaces for t in tensor_parallel_sizes(space))
    # With all devices as replicas, experts can be cut in every way in which they can with fewer.
    expert = _union(expert_parallel_sizes(space, Sizes(1, 1, 1, space.world_size)) for space in spaces)
    return price_shards(spaces[0].setting, tensor, priced_batch_sizes(spaces[0]), context, expert)


def _union(sizes: Iterable[Sequence[int]]) -> list[int]:
    return sorted(set().union(*sizes))


def price_shards(
    setting: Setting,
    tensor_parallel_sizes: Sequence[int],
    micro_batch_sizes: Sequence[int],
    context_parallel_sizes: Sequence[int] = (1,),
    expert_parallel_sizes: Sequence[int] = (1,),
) -> ShardWork:
    """The table for these sizes, each list ascending."""
    lists = (context_parallel_sizes, expert_parallel_sizes, tensor_parallel_sizes, micro_batch_sizes)
    sizes = [np.array(each, dtype=np.int64) for each in lists]
    grid = np.meshgrid(*sizes, np.array([False, True]), np.arange(len(RECOMPUTES)), indexing="ij")
    context, expert, tensor, micro_batch, sequence_parallel, recompute = (axis.ravel() for axis in grid)
    shard = Shard(tensor, micro_batch, sequence_parallel, recompute, context, expert)
    return ShardWork(shard_work(setting, shard), tuple(sizes))
