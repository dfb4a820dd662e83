"""Data parallelism: sum gradients over the replicas, and with ZeRO-1 let each replica update one shard of the weights.

ZeRO-0 keeps the whole optimizer state on every replica; ZeRO-1 shards it (arXiv 1910.02054, section 5.1), reducing each
bucket to shards and gathering the updated weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from train_core.collectives import Axis, all_gather, all_reduce, reduce_scatter, shard
from train_core.flat_parameters import Bucket


class Replicas:
    """The data axis as the optimizer sees it: which part of every bucket this rank updates, and how parts meet.

    Attributes:
        scatters: reduce gradients to shards; else sum them whole, which gloo does faster than a reduce-scatter.
    """

    def __init__(self, axis: Axis, zero_stage: int, device: torch.device) -> None:
        self.axis = axis
        self.is_sharded = zero_stage == 1 and axis.size > 1
        self.scatters = self.is_sharded and device.type == "cuda"

    def own(self, flat: Tensor) -> Tensor:
        """The part of a bucket's tensor that this rank updates, as a view."""
        return shard(flat, self.axis) if self.is_sharded else flat

    def reduce_gradients(self, buckets: list[Bucket]) -> None:
        """Sum over the replicas. Afterwards at least `own(bucket.gradients)` is complete."""
        if self.scatters:
            started = [
                reduce_scatter(bucket.gradients, self.axis, into=self.own(bucket.gradients)) for bucket in buckets
            ]
        else:
            started = [all_reduce(bucket.gradients, self.axis) for bucket in buckets]
        for reducing in started:
            reducing.wait()

    def gather_weights(self, buckets: list[Bucket]) -> None:
        """Make every replica's weights whole again after each updated its own part."""
        if not self.is_sharded:
            return
        # A copy of the shard, because gloo does not allow the input to lie inside the output.
        for gathering in [
            all_gather(self.own(bucket.weights).clone(), self.axis, into=bucket.weights) for bucket in buckets
        ]:
            gathering.wait()
