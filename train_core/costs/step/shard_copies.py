"""Copies on the device around the collectives of ZeRO-2 and ZeRO-3, where shards are cut from each parameter."""

from __future__ import annotations

import numpy as np

from conf.units import FLOAT32_BYTES
from train_core.costs.primitives.kernels import memory_bound_seconds
from train_core.costs.primitives.narrow import gathered_weight_bytes
from train_core.costs.setting import Floats, Integers, Plans, Setting


def shard_copy_seconds(setting: Setting, plans: Plans, parameters: Integers) -> tuple[Floats, Floats]:
    """Seconds of these copies, before the forward pass of a micro-batch and after it.

    What was gathered is copied from the ranks' shards to the parameters, and gradients are copied to one buffer that
    the ranks' shards of all of them lie in, in fp32. Trainers that cut one flat tensor copy nothing. Source: torch,
    fsdp/_fully_shard/_fsdp_collectives.py, `all_gather_copy_out` and `chunk_cat`.
    """
    if not setting.implementation.copies_shards:
        return np.asarray(0.0), np.asarray(0.0)
    out = memory_bound_seconds(setting, parameters * 2 * gathered_weight_bytes(setting))
    together = memory_bound_seconds(setting, parameters * (setting.dtype_bytes + FLOAT32_BYTES))
    has_replicas = plans.num_replicas > 1
    gathered = np.where((plans.zero_stage >= 3) & has_replicas, out, 0.0)
    return gathered, gathered + np.where((plans.zero_stage >= 2) & has_replicas, together, 0.0)
