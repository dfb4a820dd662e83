"""Seconds of the attention core: one fused kernel, or two batched products around a softmax."""

from __future__ import annotations

from train_core.costs.layer.shard import Shard, scores_of
from train_core.costs.primitives.kernels import attention_seconds, matmul_seconds, memory_bound_seconds
from train_core.costs.setting import Floats, Integers, Setting

FLASH_BACKWARD_TO_FORWARD = 2.5  # five products against two; source: arXiv 2205.14135, appendix B


def _causal_flops(setting: Setting, shard: Shard) -> Integers:
    """FLOPs of a flash kernel, which computes scores and weighted values of the lower triangle alone."""
    model = setting.model
    return scores_of(setting, shard) * (model.query_size + model.attended_size) // model.num_attention_heads


def core_forward(setting: Setting, shard: Shard) -> Floats:
    if setting.implementation.flash_attention:
        return attention_seconds(setting, _causal_flops(setting, shard))
    # Two batched products with a softmax between them. They know nothing of the mask and compute the full square.
    rows, s, count, size = _heads(setting, shard)
    passes = 2 + (2 if setting.implementation.dropout else 0)
    softmax = scores_of(setting, shard) * (passes * setting.dtype_bytes + int(setting.implementation.dropout))
    products = matmul_seconds(setting, rows, s, size, count) + matmul_seconds(setting, rows, size, s, count)
    return products + memory_bound_seconds(setting, softmax, passes // 2)


def core_backward(setting: Setting, shard: Shard) -> Floats:
    if setting.implementation.flash_attention:
        return attention_seconds(setting, FLASH_BACKWARD_TO_FORWARD * _causal_flops(setting, shard))
    rows, s, count, size = _heads(setting, shard)
    passes = 3 + (2 if setting.implementation.dropout else 0)
    softmax = scores_of(setting, shard) * (passes * setting.dtype_bytes + int(setting.implementation.dropout))
    products = matmul_seconds(setting, rows, s, size, count) + 3.0 * matmul_seconds(setting, rows, size, s, count)
    return products + memory_bound_seconds(setting, softmax, 2)


def _heads(setting: Setting, shard: Shard) -> tuple[Integers, int, Integers, int]:
    """A rank's queries of a sequence, the sequence's keys, number of batched products and size of a head."""
    model = setting.model
    heads = model.num_attention_heads // shard.tensor_parallel_size
    rows = model.seq_length // shard.context_parallel_size
    return rows, model.seq_length, shard.micro_batch_size * heads, model.query_size // model.num_attention_heads
