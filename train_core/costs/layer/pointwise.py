"""Pointwise recomputation: the outputs of a layer's two norms and of its activation are made again in backward.

Each is dropped once the product that it goes into is done, and made again from the operation's own input, which is kept
anyway, when that product's backward pass begins. No product and no collective runs again. Megatron-Core does the same
for its recompute modules `layernorm` and the activation.
"""

from __future__ import annotations

import numpy as np

from train_core.costs.layer.shard import POINTWISE, Shard, held_tokens_of, tokens_of
from train_core.costs.primitives.kernels import memory_bound_seconds
from train_core.costs.setting import Floats, Integers, Setting

NUM_NORMS = 2


def repeated_seconds(setting: Setting, shard: Shard) -> Floats:
    """Seconds of the two norms and the activation, each of which reads its input and writes its output."""
    norms = NUM_NORMS * 2 * norm_output_bytes(setting, shard)
    activation = (3 if setting.model.gated_mlp else 2) * activated_bytes(setting, shard)
    seconds = memory_bound_seconds(setting, (norms + activation) * setting.implementation.memory_traffic, NUM_NORMS + 1)
    return np.where(shard.recompute == POINTWISE, seconds, 0.0)


def dropped_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes of the outputs that a layer then does not keep."""
    return NUM_NORMS * norm_output_bytes(setting, shard) + activated_bytes(setting, shard)


def norm_output_bytes(setting: Setting, shard: Shard) -> Integers:
    held: Integers = held_tokens_of(setting, shard) * setting.model.hidden_size * setting.dtype_bytes
    return held


def activated_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes of the activation's output."""
    features: Integers = setting.model.ffn_hidden_size // shard.tensor_parallel_size
    return tokens_of(setting, shard) * features * setting.dtype_bytes
