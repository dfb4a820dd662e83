"""Seconds of one transformer layer for one micro-batch on one rank: products, what lies between them, collectives."""

from __future__ import annotations

import numpy as np

from train_core.costs.layer.shard import FULL, Shard, held_tokens_of, products_of, tokens_of
from train_core.costs.primitives.collectives import (
    all_reduce_seconds,
    gather_seconds,
    shown_seconds,
)
from train_core.costs.primitives.kernels import matmul_seconds, memory_bound_seconds
from train_core.costs.setting import Floats, Setting

FORWARD_KERNELS = 8  # norms, residual additions, activation, head permutations: memory-bound ones of a layer
BACKWARD_KERNELS = 14


def projections_forward(setting: Setting, shard: Shard) -> Floats:
    tokens = tokens_of(setting, shard)
    products = sum(matmul_seconds(setting, tokens, n, k) for n, k in products_of(setting, shard))
    return products + _between_products(setting, shard, held=10, gelu=2, gated=3, kernels=FORWARD_KERNELS)


def projections_repeated(setting: Setting, shard: Shard, forward: Floats) -> Floats:
    """Seconds of `forward` when full recomputation runs it again, which some trainers end before the last product."""
    if not setting.implementation.stops_recompute_early:
        return forward
    columns, depth = products_of(setting, shard)[-1]
    return forward - matmul_seconds(setting, tokens_of(setting, shard), columns, depth)


def projections_input_gradient(setting: Setting, shard: Shard) -> Floats:
    tokens = tokens_of(setting, shard)
    products = sum(matmul_seconds(setting, tokens, k, n) for n, k in products_of(setting, shard))
    return products + _between_products(setting, shard, held=14, gelu=3, gated=5, kernels=BACKWARD_KERNELS)


def weight_gradients_of(setting: Setting, shard: Shard) -> list[Floats]:
    """Seconds for each matrix in the order of `products_of`, where splits by columns and by rows alternate."""
    tokens = tokens_of(setting, shard)
    return [matmul_seconds(setting, n, k, tokens) for n, k in products_of(setting, shard)]


def _between_products(setting: Setting, shard: Shard, *, held: int, gelu: int, gated: int, kernels: int) -> Floats:
    """Norms, residual additions, dropout, activation and the moves of heads, all bound by memory bandwidth.

    Args:
        held: elements read and written per token and hidden unit by norms and residual additions.
        gelu, gated: elements per feed-forward unit by the activation, without and with a gate.
    """
    model, t, implementation = setting.model, shard.tensor_parallel_size, setting.implementation
    masks = 2 * model.hidden_size if implementation.dropout else 0
    moved_heads = (model.query_size + model.key_value_size) * 2
    activation = (gated if model.gated_mlp else gelu) * model.ffn_hidden_size
    between = held_tokens_of(setting, shard) * (held * model.hidden_size * setting.dtype_bytes + masks)
    inside = tokens_of(setting, shard) * (activation + moved_heads) * setting.dtype_bytes // t
    return memory_bound_seconds(setting, (between + inside) * implementation.memory_traffic, kernels)


def tensor_seconds(setting: Setting, shard: Shard, hiding: list[Floats]) -> tuple[Floats, Floats]:
    """Two all-reduces each way, or as many gathers and scatters; a repeated forward repeats them.

    Args:
        hiding: the weight gradients beside which the input gradients of the same two products can be reduced.

    Source: arXiv 2104.04473, section 3.2; arXiv 2205.05198, section 4.2.2 (sequence parallelism gathers its inputs
    again for the weight gradient).
    """
    t = shard.tensor_parallel_size
    num_bytes = tokens_of(setting, shard) * setting.model.hidden_size * float(setting.dtype_bytes)
    stride = np.ones_like(t)
    forward = 2.0 * all_reduce_seconds(setting, num_bytes, t, stride)
    gathers = 2.0 * gather_seconds(setting, num_bytes, t, stride)
    # On a CPU the cores that would compute meanwhile carry out the collectives, so that nothing is hidden.
    if setting.implementation.overlaps_weight_gradient and setting.cluster.device.kind == "gpu":
        reduction = np.where(shard.sequence_parallel, gathers, forward) / 2.0
        shown = np.where(shard.sequence_parallel, gathers, 0.0)
        shown = shown + sum(shown_seconds(setting, reduction, gradient) for gradient in hiding)
    else:
        shown = forward + np.where(shard.sequence_parallel, gathers, 0.0)
    return forward, shown + np.where(shard.recompute == FULL, forward, 0.0)
