"""The work of ranks for every shard that a search can meet. It is priced once, and each block looks it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from conf.plan.knobs import RECOMPUTES
from train_core.costs.layer.shard import NONE, Shard
from train_core.costs.setting import Booleans, Integers, Plans, Setting
from train_core.costs.work import Work, recompute_by_layer, shard_work

PARAMETERS = (
    "layer_parameters",
    "dense_layer_parameters",
    "expert_parameters",
    "embedding_parameters",
    "token_embedding_parameters",
)


@dataclass(frozen=True, slots=True)
class ShardWork:
    """A table over tensor-parallel sizes x micro-batches x sequence parallelism x recomputation.

    Attributes:
        work: its rows, in that order.
        tensor_parallel_sizes: ascending, (t,).
        micro_batch_sizes: ascending, (b,).
    """

    work: Work
    tensor_parallel_sizes: Integers
    micro_batch_sizes: Integers

    def of(self, plans: Plans) -> Work:
        """The work of each plan, in the shape that its shard has in `plans`; parameters in that of its tensor size."""
        # Parameters depend on the tensor-parallel size alone. In its smaller shape, all that is computed from them
        # stays small too.
        shard = (plans.tensor_parallel_size, plans.micro_batch_size, plans.sequence_parallel)
        rows = self.of_shards(*shard, plans.recompute)
        if recompute_by_layer(plans):
            plain = self.of_shards(*shard, np.full_like(plans.recompute, NONE)).layer
            rows = replace(rows, plain_layer=plain)
        t = np.searchsorted(self.tensor_parallel_sizes, plans.tensor_parallel_size) * len(self.micro_batch_sizes)
        # The first row of a tensor size stands for all of its rows, which have the same parameters.
        of_tensor_size = t * (2 * len(RECOMPUTES))
        return replace(rows, **{name: getattr(self.work, name)[of_tensor_size] for name in PARAMETERS})

    def of_shards(
        self,
        tensor_parallel_size: Integers | int,
        micro_batch_size: Integers,
        sequence_parallel: Integers | Booleans,
        recompute: Integers,
    ) -> Work:
        """The work of each shard, in the shape that its sizes broadcast to."""
        # The number of a row, digit by digit in the order of the axes in which `price_shards` crosses the choices.
        t = np.searchsorted(self.tensor_parallel_sizes, tensor_parallel_size) * len(self.micro_batch_sizes)
        shard = t + np.searchsorted(self.micro_batch_sizes, micro_batch_size)
        return self.work.rows((shard * 2 + sequence_parallel) * len(RECOMPUTES) + recompute)


@dataclass
class ShardTables:
    """Tables for every context- and expert-parallel size that blocks ask for, each priced when it is first needed."""

    setting: Setting
    tensor_parallel_sizes: Sequence[int]
    micro_batch_sizes: Sequence[int]
    _tables: dict[tuple[int, int], ShardWork] = field(default_factory=dict)

    def of(self, context_parallel_size: int = 1, expert_parallel_size: int = 1) -> ShardWork:
        key = (context_parallel_size, expert_parallel_size)
        if key not in self._tables:
            sizes = (self.tensor_parallel_sizes, self.micro_batch_sizes)
            self._tables[key] = price_shards(self.setting, *sizes, *key)
        return self._tables[key]


def price_shards(
    setting: Setting,
    tensor_parallel_sizes: Sequence[int],
    micro_batch_sizes: Sequence[int],
    context_parallel_size: int = 1,
    expert_parallel_size: int = 1,
) -> ShardWork:
    """The table for these sizes, both lists ascending."""
    t, b = np.array(tensor_parallel_sizes, dtype=np.int64), np.array(micro_batch_sizes, dtype=np.int64)
    grid = np.meshgrid(t, b, np.array([False, True]), np.arange(len(RECOMPUTES)), indexing="ij")
    t_axis, b_axis, sequence_parallel, recompute = (axis.ravel() for axis in grid)
    others = (np.full_like(t_axis, size) for size in (context_parallel_size, expert_parallel_size))
    shard = Shard(t_axis, b_axis, sequence_parallel, recompute, *others)
    return ShardWork(shard_work(setting, shard), t, b)
