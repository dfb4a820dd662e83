"""Ranks that hold the same weights, which gradients are reduced over and ZeRO shares out among: experts have fewer."""

from __future__ import annotations

import numpy as np

from train_core.costs.primitives.collectives import gather_seconds
from train_core.costs.setting import Floats, Integers, Plans, Setting
from train_core.costs.stages import StageGroup
from train_core.costs.work import Work, group_experts, group_parameters


def expert_replicas(setting: Setting, plans: Plans) -> Integers:
    """Ranks of a stage that hold the same experts, or the same parts of them."""
    t = plans.tensor_parallel_size
    among = plans.expert_parallel_size * setting.expert_tensor_size(t)
    return np.maximum(plans.num_replicas * t // among, 1)


def owned_parameters(setting: Setting, plans: Plans, work: Work, group: StageGroup) -> Integers:
    """A rank's share of its stage's parameters. Shards are padded to the same length, so all ranks hold as much."""
    p = plans.pipeline_parallel_size
    parameters = group_parameters(setting, work, p, group.layers, group.is_first, group.is_last)
    if setting.model.experts is None:
        return -(-parameters // plans.num_replicas)
    experts = group_experts(setting, work, group.layers, group.is_first)
    return -(-(parameters - experts) // plans.num_replicas) - (-experts // expert_replicas(setting, plans))


def replica_seconds(setting: Setting, plans: Plans, work: Work, group: StageGroup, bytes_each: float) -> Floats:
    """Seconds in which replicas gather, or reduce and scatter, all parameters of a stage's rank, `bytes_each` wide."""
    t, p = plans.tensor_parallel_size, plans.pipeline_parallel_size
    parameters = group_parameters(setting, work, p, group.layers, group.is_first, group.is_last)
    if setting.model.experts is None:
        return gather_seconds(setting, parameters * bytes_each, plans.num_replicas, t)
    experts = group_experts(setting, work, group.layers, group.is_first)
    stride = plans.expert_parallel_size * setting.expert_tensor_size(t)
    of_experts = gather_seconds(setting, experts * bytes_each, expert_replicas(setting, plans), stride)
    return gather_seconds(setting, (parameters - experts) * bytes_each, plans.num_replicas, t) + of_experts
