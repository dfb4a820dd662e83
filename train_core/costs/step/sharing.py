"""Among how many replicas ZeRO shares out, where groups of replicas each hold everything once."""

from __future__ import annotations

import numpy as np

from train_core.costs.setting import Integers, Plans, Setting


def num_shards(setting: Setting, plans: Plans) -> Integers:
    """Replicas among which ZeRO shares out: all of them, or those of a group."""
    return within_group(setting, plans.num_replicas)


def within_group(setting: Setting, replicas: Integers) -> Integers:
    """Return how many of so many replicas are in one group.

    With fewer replicas than a group has, there is one group. Where groups do not divide the replicas, one is smaller
    than the others, which changes neither the fullest rank nor the slowest group.
    """
    return replicas if setting.zero_group_size is None else np.minimum(replicas, setting.zero_group_size)
