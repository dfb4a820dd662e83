"""Seconds of casting the operands of a layer's products, and what narrow inputs save of what a layer keeps."""

from __future__ import annotations

import numpy as np

from train_core.costs.kernels import NarrowProducts, Number, gathers_narrow, memory_bound_seconds, recipe_of
from train_core.costs.layer.shard import FULL, POINTWISE, Shard, held_tokens_of, products_of, tokens_of
from train_core.costs.setting import Floats, Integers, Setting

PASSES_BYTES = 25
"""Bytes that casting one element moves beside two reads of the wide one, of which the first finds the largest value.
The other writes it in fp32, which is read and written twice more, scaled and clamped, and read and written narrow."""

ANEW_KERNELS, COMPILED_KERNELS = 6, 2
SECTOR_BYTES = 32
"""A GPU reads memory in pieces of so many bytes. Source: the CUDA C++ Programming Guide, on the access of memory."""


def forward_casts(setting: Setting, shard: Shard) -> Floats | float:
    """Seconds of casting the inputs of the four products; those split by columns gather theirs."""
    recipe = recipe_of(setting)
    if recipe is None:
        return 0.0
    products = products_of(setting, shard)
    if setting.implementation.casts_anew:
        tokens = tokens_of(setting, shard)
        return anew_seconds(setting, sum(tokens * k + n * k for n, k in products), 0, 2 * len(products))
    transposes = setting.implementation.keeps_narrow_inputs
    return _cast_seconds(setting, shard, recipe, [k for _, k in products], 0, transposes=transposes)


def backward_casts(setting: Setting, shard: Shard) -> Floats | float:
    """Seconds of casting their output gradients, which those split by rows gather, and inputs that were kept wide."""
    recipe = recipe_of(setting)
    if recipe is None:
        return 0.0
    products = products_of(setting, shard)
    if setting.implementation.casts_anew:
        tokens = tokens_of(setting, shard)
        transposed = sum(n * k + tokens * (n + k) for n, k in products)
        return anew_seconds(setting, sum(tokens * n for n, _ in products), transposed, 4 * len(products))
    gradients = _cast_seconds(setting, shard, recipe, [n for n, _ in products], 1, transposes=True)
    return gradients if setting.implementation.keeps_narrow_inputs else gradients + forward_casts(setting, shard)


def anew_seconds(setting: Setting, plain: Number, transposed: Number, num_casts: Number) -> Floats:
    """Seconds of casting so many elements operation by operation, the second number of them in transposed order.

    Narrow operands are copied into that order byte by byte, and each byte is read with the sector that it lies in. A
    compiled cast reads twice and writes once, in either order.
    """
    is_eager = not setting.implementation.is_compiled
    each = 2 * setting.dtype_bytes + (PASSES_BYTES if is_eager else 1)
    moved = plain * each + transposed * (each + (SECTOR_BYTES + 1 if is_eager else 0))
    kernels = (ANEW_KERNELS if is_eager else COMPILED_KERNELS) * num_casts
    return memory_bound_seconds(setting, np.asarray(moved, dtype=np.float64), kernels)


def _cast_seconds(
    setting: Setting,
    shard: Shard,
    recipe: NarrowProducts,
    widths: list[Integers | int],
    gathered: int,
    *,
    transposes: bool,
) -> Floats:
    """Seconds of casting an operand of each product, (tokens, width).

    What tensor ranks gather afterwards is cast in shares, and transposed once it is whole.

    Args:
        gathered: which of two neighbouring products gathers its operand under sequence parallelism, 0 or 1.
        transposes: what was cast is used transposed too, for which some devices want a copy.
    """
    tokens, held = tokens_of(setting, shard), held_tokens_of(setting, shard)
    each = recipe.cast_bytes(setting.dtype_bytes)
    transposed = recipe.transposed_bytes(setting.cluster.device) if transposes else 0.0
    moved: Floats = np.asarray(0.0)
    for index, width in enumerate(widths):
        cast = held if index % 2 == gathered and gathers_narrow(setting, recipe) else tokens
        moved = moved + (cast * each + tokens * transposed) * width
    return memory_bound_seconds(setting, moved, recipe.kernels * len(widths))


def kept_difference(setting: Setting, shard: Shard, recompute: Integers) -> Integers:
    """Bytes that a layer keeps more (or less) for backward than with wide products.

    Outputs of norms and of the activation are kept as the narrow inputs that they became. The attention's output is
    kept twice: wide for the backward pass of the core, narrow for that of the projection.
    """
    recipe = recipe_of(setting)
    if recipe is None or not setting.implementation.keeps_narrow_inputs:
        return np.asarray(0)
    model, t = setting.model, shard.tensor_parallel_size
    saved = setting.dtype_bytes - recipe.operand_bytes
    norms = held_tokens_of(setting, shard) * 2 * model.hidden_size * saved
    less = norms + tokens_of(setting, shard) * model.ffn_hidden_size * saved / t
    more = tokens_of(setting, shard) * model.attended_size * recipe.operand_bytes / t
    # Pointwise recomputation keeps neither these outputs nor what they became.
    kept = more - np.where(recompute == POINTWISE, 0.0, less)
    return np.where(recompute == FULL, 0, kept).astype(np.int64)
