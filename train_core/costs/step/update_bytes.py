"""Bytes that the update of a step moves through memory, operation by operation, as this package's trainer does it."""

from __future__ import annotations

import numpy as np

from conf.units import FLOAT32_BYTES
from train_core.costs.setting import Booleans, Floats, Integers, Plans, Setting

FLOAT32_PASSES = 7
"""Of AdamW's kernel: it reads master, gradient and both moments, and writes all of them but the gradient."""


def update_bytes(setting: Setting, plans: Plans, held: Integers, owned: Integers) -> Floats:
    """Bytes of a rank's update; clipping is not in it, since only a step's gradient tells whether it clips.

    Args:
        held: the parameters of a rank.
        owned: those of them that it updates.
    """
    each = setting.implementation.optimizer_bytes_per_parameter
    if each is not None:
        return owned * each
    has_replicas = plans.num_replicas > 1
    fully = (plans.zero_stage >= 3) & has_replicas
    shares = (plans.zero_stage >= 1) & has_replicas
    # FSDP2 frees gradients instead of making them zero, and makes means, which are turned into sums; its shards are the
    # masters themselves.
    zeroed = np.where(fully, 0, np.where(plans.zero_stage >= 2, owned, held)) * setting.gradient_bytes
    summed = 2 * FLOAT32_BYTES
    of_owned = np.where(fully, summed + _adam_bytes(FLOAT32_BYTES), _flat_bytes(setting, shares))
    return zeroed + owned * of_owned


def _adam_bytes(gradient_bytes: int) -> int:
    """The gradient's norm, its copy in fp32 where it is narrower, and the kernel of AdamW."""
    widened = gradient_bytes + FLOAT32_BYTES if gradient_bytes < FLOAT32_BYTES else 0
    return gradient_bytes + widened + FLOAT32_PASSES * FLOAT32_BYTES


def _flat_bytes(setting: Setting, shares: Booleans) -> Floats:
    """Return the bytes of an update in flat buckets: weights are rounded masters, and copied to be gathered."""
    weight, gradient = setting.dtype_bytes, setting.gradient_bytes
    unscaled = 2 * gradient if setting.dtype == "fp16" else 0
    rounded = FLOAT32_BYTES + weight if weight < FLOAT32_BYTES else 0
    return unscaled + _adam_bytes(gradient) + rounded + np.where(shares, 2 * weight, 0)
