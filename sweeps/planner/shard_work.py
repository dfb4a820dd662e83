"""What ranks do, for every shard that a search can meet. It is priced once, and each block looks it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from conf.knobs import RECOMPUTES
from train_core.costs.layer.shard import Shard
from train_core.costs.setting import Booleans, Integers, Plans, Setting
from train_core.costs.work import Work, shard_work

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
        rows = self.of_shards(
            plans.tensor_parallel_size, plans.micro_batch_size, plans.sequence_parallel, plans.recompute
        )
        t = np.searchsorted(self.tensor_parallel_sizes, plans.tensor_parallel_size) * len(self.micro_batch_sizes)
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


def price_shards(setting: Setting, tensor_parallel_sizes: Sequence[int], micro_batch_sizes: Sequence[int]) -> ShardWork:
    """The table for these sizes, both ascending."""
    t, b = np.array(tensor_parallel_sizes, dtype=np.int64), np.array(micro_batch_sizes, dtype=np.int64)
    grid = np.meshgrid(t, b, np.array([False, True]), np.arange(len(RECOMPUTES)), indexing="ij")
    t_axis, b_axis, sequence_parallel, recompute = (axis.ravel() for axis in grid)
    one = np.ones_like(t_axis)
    shard = Shard(t_axis, b_axis, sequence_parallel, recompute, one, one)
    return ShardWork(shard_work(setting, shard), t, b)
