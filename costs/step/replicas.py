"""Ranks that hold the same weights, which gradients are reduced over and ZeRO shares out among: experts have fewer.

The order of ranks: tensor ranks are neighbours, then context ranks; then come replicas and after them stages, or under
`pipeline_before_data` stages and after them replicas. Source: Megatron-LM, megatron/core/parallel_state.py, orders
"tp-cp-ep-dp-pp" and "tp-cp-ep-pp-dp" (--use-tp-pp-dp-mapping).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from costs.collectives import PricedRing, Runs, quick_ring_of, ring_of
from costs.setting import Booleans, Floats, Integers, Plans, Setting


def expert_replicas(setting: Setting, plans: Plans) -> Integers:
    """Ranks of a stage that hold the same experts, or the same parts of them."""
    t = plans.tensor_parallel_size
    among = plans.expert_parallel_size * setting.expert_tensor_size(t)
    # All ranks of a stage, num_replicas x t of them, are shared out to as many copies of the experts as fit in.
    return np.maximum(plans.num_replicas * t // among, 1)


def share_weights(setting: Setting, plans: Plans) -> Booleans:
    """True where several ranks hold the same weights, if only those of experts, as tensor ranks do."""
    alike: Booleans = plans.num_replicas > 1
    return alike if setting.model.experts is None else alike | (expert_replicas(setting, plans) > 1)


@dataclass(frozen=True)
class PricedReplicas:
    """The ranks that hold the same weights of the stages of plans. Their rings are found once for all stages.

    Attributes:
        is_quick: all rings are those of `quick_ring_of`, for the pace of collectives.
    """

    setting: Setting
    plans: Plans
    is_quick: bool = False

    def gather_seconds(
        self, parameters: Integers | Floats, experts: Integers | Floats | int, bytes_each: float
    ) -> Floats:
        """Seconds in which they gather so many parameters, or reduce and scatter them; under ZeRO those of one group.

        Args:
            experts: those of the parameters that are experts'.
            bytes_each: of one of them on the wire.
        """
        seconds = self._ring.gather_seconds((parameters - experts) * bytes_each)
        if self._expert_ring is None:
            return seconds
        # Experts are reduced by a collective of their own, which fewer ranks take part in.
        return seconds + self._expert_ring.gather_seconds(np.asarray(experts * bytes_each))

    def across_groups_seconds(
        self, parameters: Integers | Floats, experts: Integers | Floats | int, bytes_each: float
    ) -> Floats | float:
        """Seconds in which groups of replicas that share out add up the shards of their gradients.

        Source: arXiv 2304.11277, section 3.2.2 (hybrid sharding).
        """
        setting, plans = self.setting, self.plans
        if setting.zero_group_size is None:
            return 0.0
        # Within a group the gradients are scattered already, so that each rank adds up its shard with its likes in
        # other groups.
        shard = (parameters - experts) * bytes_each / num_shards(setting, plans)
        seconds = self._ring_across_groups.all_reduce_seconds(shard)
        if setting.model.experts is None:
            return seconds
        members = within_group(setting, expert_replicas(setting, plans))
        sent = np.asarray(experts * bytes_each) / members
        return seconds + self._expert_ring_across_groups.all_reduce_seconds(sent)

    @cached_property
    def quick(self) -> PricedReplicas:
        return replace(self, is_quick=True)

    def _ring_of(self, num_ranks: Integers, stride: Integers, runs: Runs | None = None) -> PricedRing:
        return (
            quick_ring_of(self.setting, num_ranks) if self.is_quick else ring_of(self.setting, num_ranks, stride, runs)
        )

    @cached_property
    def _ring(self) -> PricedRing:
        setting, plans = self.setting, self.plans
        members = np.where(plans.zero_stage == 0, plans.num_replicas, num_shards(setting, plans))
        return self._ring_of(*replica_group(setting, plans, members))

    @cached_property
    def _expert_ring(self) -> PricedRing | None:
        setting, plans = self.setting, self.plans
        if setting.model.experts is None:
            return None
        holders = expert_replicas(setting, plans)
        holders = np.where(plans.zero_stage == 0, holders, within_group(setting, holders))
        return self._ring_of(holders, expert_stride(setting, plans))

    @cached_property
    def _ring_across_groups(self) -> PricedRing:
        return self._ring_of(*same_shard_group(self.setting, self.plans))

    @cached_property
    def _expert_ring_across_groups(self) -> PricedRing:
        setting, replicas = self.setting, expert_replicas(self.setting, self.plans)
        members = within_group(setting, replicas)
        return self._ring_of(-(-replicas // members), expert_stride(setting, self.plans) * members)


def num_shards(setting: Setting, plans: Plans) -> Integers:
    """Replicas among which ZeRO shares out: all of them, or those of a group."""
    return within_group(setting, plans.num_replicas)


def within_group(setting: Setting, replicas: Integers) -> Integers:
    """Return how many of so many replicas are in one group.

    With fewer replicas than a group has, there is one group. Where groups do not divide the replicas, one is smaller
    than the others, which changes neither the fullest rank nor the slowest group.
    """
    return replicas if setting.zero_group_size is None else np.minimum(replicas, setting.zero_group_size)


class RankGroup(NamedTuple):
    """Ranks of a collective, in columns, as `collectives.ring_of` takes them."""

    num_ranks: Integers
    stride: Integers
    runs: Runs | None


def stage_stride(setting: Setting, plans: Plans) -> Integers:
    """Devices from a rank to the one with the same share of the next stage."""
    replicas = plans.context_parallel_size if setting.pipeline_before_data else plans.num_replicas
    return plans.tensor_parallel_size * replicas


def widest_hop(setting: Setting, plans: Plans) -> Integers:
    """A distance that crosses as many tiers as the widest hop between the stages of one pipeline.

    Where a node holds several stages, some hops leave it, and all stages wait for those in every turn. Half of the
    pipeline's extent is more than half of a block exactly where the pipeline does not fit into the block.
    """
    stride = stage_stride(setting, plans)
    return np.maximum(stride, -(-stride * plans.pipeline_parallel_size // 2))


def pipeline_extent(setting: Setting, plans: Plans) -> Integers:
    """Devices from the first rank of a pipeline to the last of its last stage, both counted."""
    return stage_stride(setting, plans) * plans.pipeline_parallel_size


def replica_group(setting: Setting, plans: Plans, size: Integers) -> RankGroup:
    """The first `size` of the ranks that hold the same weights of a stage.

    Context ranks are neighbours; under `pipeline_before_data` the others of a rank are whole pipelines away.
    """
    runs = Runs(plans.context_parallel_size, pipeline_extent(setting, plans)) if setting.pipeline_before_data else None
    return RankGroup(size, plans.tensor_parallel_size, runs)


def same_shard_group(setting: Setting, plans: Plans) -> RankGroup:
    """The ranks that hold the same shard of a stage, one of each group of `zero_group_size` replicas."""
    members, c = within_group(setting, plans.num_replicas), plans.context_parallel_size
    # The number of groups is a quotient rounded up, as the last group may be smaller.
    size, stride = -(-plans.num_replicas // members), plans.tensor_parallel_size * members
    if not setting.pipeline_before_data:
        return RankGroup(size, stride, None)
    # A group within the c context ranks of a pipeline leaves c // members ranks with the same shard side by side, and
    # the next ones are in the next pipeline. A larger group covers members // c pipelines, and has one such rank.
    jump = pipeline_extent(setting, plans) * np.maximum(1, members // c)
    return RankGroup(size, stride, Runs(np.maximum(1, c // members), jump))


def expert_stride(setting: Setting, plans: Plans) -> Integers:
    """Devices between neighbours of those ranks that hold the same experts.

    Under `pipeline_before_data` experts are spread over all ranks of one replica (conf.plan.expert_axis).
    """
    among = plans.expert_parallel_size * setting.expert_tensor_size(plans.tensor_parallel_size)
    return among * plans.pipeline_parallel_size if setting.pipeline_before_data else among
