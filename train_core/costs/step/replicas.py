"""Ranks that hold the same weights, which gradients are reduced over and ZeRO shares out among: experts have fewer."""

from __future__ import annotations

import numpy as np

from train_core.costs.primitives.collectives import all_reduce_seconds, gather_seconds
from train_core.costs.setting import Floats, Integers, Plans, Setting
from train_core.costs.step.placement import expert_stride, replica_group, same_shard_group
from train_core.costs.step.sharing import num_shards, within_group


def expert_replicas(setting: Setting, plans: Plans) -> Integers:
    """Ranks of a stage that hold the same experts, or the same parts of them."""
    t = plans.tensor_parallel_size
    among = plans.expert_parallel_size * setting.expert_tensor_size(t)
    return np.maximum(plans.num_replicas * t // among, 1)


def replica_seconds(
    setting: Setting, plans: Plans, parameters: Integers | Floats, experts: Integers | Floats | int, bytes_each: float
) -> Floats:
    """Seconds in which replicas gather so many parameters, or reduce and scatter them; under ZeRO those of one group.

    Args:
        experts: those of the parameters that are experts'.
        bytes_each: of one of them on the wire.
    """
    others = (parameters - experts) * bytes_each
    is_whole = plans.zero_stage == 0
    members = np.where(is_whole, plans.num_replicas, num_shards(setting, plans))
    seconds = gather_seconds(setting, others, *replica_group(setting, plans, members))
    if setting.model.experts is None:
        return seconds
    sent = np.asarray(experts * bytes_each)
    holders = expert_replicas(setting, plans)
    holders = np.where(is_whole, holders, within_group(setting, holders))
    return seconds + gather_seconds(setting, sent, holders, expert_stride(setting, plans))


def across_groups_seconds(
    setting: Setting, plans: Plans, parameters: Integers | Floats, experts: Integers | Floats | int, bytes_each: float
) -> Floats | float:
    """Seconds in which groups of replicas that share out add up the shards of their gradients.

    Source: arXiv 2304.11277, section 3.2.2 (hybrid sharding).
    """
    if setting.zero_group_size is None:
        return 0.0
    others = (parameters - experts) * bytes_each
    shard = others / num_shards(setting, plans)
    seconds = all_reduce_seconds(setting, shard, *same_shard_group(setting, plans))
    if setting.model.experts is None:
        return seconds
    replicas = expert_replicas(setting, plans)
    members, sent = within_group(setting, replicas), np.asarray(experts * bytes_each)
    apart = expert_stride(setting, plans) * members
    return seconds + all_reduce_seconds(setting, sent / members, -(-replicas // members), apart)
