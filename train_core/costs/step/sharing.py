"""Among how many replicas ZeRO shares out, and how many groups of such replicas hold the same.

Source: arXiv 2304.11277, section 3.2.2 (hybrid sharding).
"""

from __future__ import annotations

import numpy as np

from train_core.costs.setting import Integers, Plans, Setting


def num_shards(setting: Setting, plans: Plans) -> Integers:
    """Replicas among which ZeRO shares out: all of them, or those of a group.

    A plan with fewer replicas than a group has one group. Where groups do not divide the replicas, one is smaller than
    the others, which changes neither the fullest rank nor the slowest group.
    """
    if setting.zero_group_size is None:
        return plans.num_replicas
    return np.minimum(plans.num_replicas, setting.zero_group_size)


def num_groups(setting: Setting, plans: Plans) -> Integers:
    """Groups of replicas that each hold everything once; 1 where ZeRO shares out among all of them."""
    return -(-plans.num_replicas // num_shards(setting, plans))
