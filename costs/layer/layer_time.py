"""Seconds of one transformer layer for one micro-batch on one rank: products, what lies between them, collectives.

Collectives of the tensor axis hide beside products: forward, the gather of an input runs beside the product that takes
it, and the scatter of a result beside the product that makes it. Backward, gathers run beside the products for input
gradients, and scatters beside those for weight gradients. Sources: Transformer Engine's user buffers; torch's fused
`all_gather_matmul` and `matmul_reduce_scatter`."""

from __future__ import annotations

import numpy as np

from conf.units import FLOAT32_BYTES
from costs.collectives import ring_of, shown_seconds
from costs.counts.flops import selected_shares
from costs.counts.parameters import NUM_NORMS, num_norms
from costs.kernels import (
    NarrowProducts,
    Number,
    gathered_share,
    gathers_narrow,
    matmul_seconds,
    memory_bound_seconds,
    recipe_of,
)
from costs.layer.shard import (
    Shard,
    activated_bytes,
    held_tokens_of,
    matrices_of,
    norm_output_bytes,
    num_gathered,
    paired_products_of,
    products_of,
    tokens_of,
)
from costs.setting import Floats, Integers, Setting, repeats

EAGER_GATED = (5, 15)
FORWARD_KERNELS = 8  # norms, residual additions, activation, head permutations: memory-bound ones of a layer
BACKWARD_KERNELS = 14


def projections_forward(setting: Setting, shard: Shard) -> Floats:
    tokens = tokens_of(setting, shard)
    recipe = recipe_of(setting)
    products = sum(matmul_seconds(setting, tokens, n, k, recipe=recipe) for n, k in products_of(setting, shard))
    return products + forward_casts(setting, shard) + between_forward(setting, shard)


def between_forward(setting: Setting, shard: Shard) -> Floats:
    """Return the seconds between the products of a forward pass, without the attention core."""
    # Two norms read and write (4), and two residual additions read two addends and write a sum (6). An activation reads
    # and writes (2).
    gated = gated_elements(setting)[0]
    more = num_norms(setting.model) - NUM_NORMS
    return _between_products(setting, shard, held=10 + 2 * more, gelu=2, gated=gated, kernels=FORWARD_KERNELS + more)


def gated_elements(setting: Setting) -> tuple[int, int]:
    """Elements per feed-forward unit that a gated activation reads and writes, forward and backward.

    In one kernel, two factors are read and their product written, and backward two inputs and the output's gradient
    are read and two gradients written. Operation by operation, as in `train_core/model/elementwise.py`, the gate is
    activated (2) and multiplied (3); backward the gradient is multiplied by the other factor (3), taken through the
    activation (3), the gate activated again (2) and multiplied (3), and both gradients stacked (4).
    """
    return EAGER_GATED if setting.implementation.layers_are_eager else (3, 5)


def projections_repeated(setting: Setting, shard: Shard, forward: Floats) -> Floats:
    """Seconds of `forward` when full recomputation runs it again, which some trainers end before the last product."""
    if not setting.implementation.stops_recompute_early:
        return forward
    columns, depth = products_of(setting, shard)[-1]
    return forward - matmul_seconds(setting, tokens_of(setting, shard), columns, depth, recipe=recipe_of(setting))


def projections_input_gradient(setting: Setting, shard: Shard) -> Floats:
    tokens = tokens_of(setting, shard)
    recipe = recipe_of(setting)
    products = sum(matmul_seconds(setting, tokens, k, n, recipe=recipe) for n, k in products_of(setting, shard))
    # An activation reads its input and the output's gradient and writes the input's (3).
    gated = gated_elements(setting)[1]
    more = num_norms(setting.model) - NUM_NORMS  # each reads its input and the output's gradient, and writes one
    kernels = BACKWARD_KERNELS + more
    between = _between_products(setting, shard, held=14 + 3 * more, gelu=3, gated=gated, kernels=kernels)
    return products + backward_casts(setting, shard) + between


def weight_gradients_of(setting: Setting, shard: Shard) -> list[Floats]:
    """Seconds for each matrix in the order of `products_of`."""
    tokens, recipe = tokens_of(setting, shard), recipe_of(setting)
    added_up = 2 * setting.gradient_bytes  # what has been added up so far is read and written
    return [
        matmul_seconds(setting, n, k, tokens, recipe=recipe, added_bytes=added_up)
        for n, k in products_of(setting, shard)
    ]


def _between_products(setting: Setting, shard: Shard, *, held: int, gelu: int, gated: int, kernels: int) -> Floats:
    """Norms, residual additions, dropout, activation and the moves of heads, all bound by memory bandwidth.

    Args:
        held: elements read and written per token and hidden unit by norms and residual additions.
        gelu, gated: elements per feed-forward unit by the activation, without and with a gate.
    """
    model, t, implementation = setting.model, shard.tensor_parallel_size, setting.implementation
    # Each of the two dropouts between products has a mask of a byte for each element, which it reads and writes, too,
    # where it is an operation of its own.
    dropped = 1 + (2 * setting.dtype_bytes if implementation.layers_are_eager else 0)
    masks = 2 * model.hidden_size * dropped if implementation.dropout else 0
    moved_heads = moved_heads_of(setting)
    activation = (gated if model.gated_mlp else gelu) * model.ffn_hidden_size
    between = held_tokens_of(setting, shard) * (held * model.hidden_size * setting.dtype_bytes + masks)
    inside = tokens_of(setting, shard) * (activation + moved_heads) * setting.dtype_bytes // t
    return memory_bound_seconds(setting, (between + inside) * implementation.memory_traffic, kernels)


def moved_heads_of(setting: Setting) -> int:
    """Elements that turning and norms of queries and keys read and write, and latent attention's joining of heads."""
    model = setting.model
    latent, turned = model.latent_attention, 2
    if setting.implementation.layers_are_eager and model.family == "llama":
        # Either half is multiplied (2 of its elements), and then the other half, multiplied, added to it (3).
        turned = 5
    moved = (model.query_size + model.key_value_size) * (
        turned + (2 if model.qk_norm or "wide_qk_norm" in model.parts else 0)
    )
    if latent is None:
        return moved
    # Both parts of a head are cut out and joined, and values are copied; the short vectors pass through their norms.
    return moved + 2 * model.value_size + 4 * ((latent.query_rank or 0) + latent.key_value_rank)


def tensor_seconds(setting: Setting, shard: Shard, hiding: list[Floats]) -> tuple[Floats, Floats]:
    """Two all-reduces each way, or as many gathers and scatters; a repeated forward repeats them.

    Args:
        hiding: the weight gradients beside which the input gradients of the same two products can be reduced.

    Source: arXiv 2104.04473, section 3.2; arXiv 2205.05198, section 4.2.2 (sequence parallelism gathers its inputs
    again for the weight gradient).
    """
    t = shard.tensor_parallel_size
    num_bytes = tokens_of(setting, shard) * setting.model.hidden_size * float(setting.dtype_bytes)
    ring, parts = ring_of(setting, t, np.ones_like(t)), num_gathered(setting)
    scatter = ring.gather_seconds(num_bytes)
    gather = ring.gather_seconds(num_bytes * gathered_share(setting))
    forward = np.where(shard.sequence_parallel, parts * (gather + scatter), parts * ring.all_reduce_seconds(num_bytes))
    gathers = parts * gather
    # On a CPU the cores that would compute meanwhile carry out the collectives, so that nothing is hidden.
    if setting.implementation.overlaps_weight_gradient and setting.cluster.device.kind == "gpu":
        reduction = np.where(shard.sequence_parallel, scatter, forward / parts)
        again = shown_seconds(setting, gathers, gathers)  # the products to the input beside them take longer
        shown = np.where(shard.sequence_parallel, gathers + again, 0.0)
        shown = shown + sum(shown_seconds(setting, reduction, gradient) for gradient in hiding)
    else:
        shown = forward + np.where(shard.sequence_parallel, gathers, 0.0)
    largest_forward, largest_backward = _largest_seconds(setting, shard)
    forward, shown = forward + largest_forward, shown + largest_backward
    # Full recomputation is a whole forward pass within the backward pass, collectives and all.
    repeated = np.where(repeats(setting, shard.recompute, "layer"), forward, 0.0)
    if setting.implementation.selective_operators:  # which keeps what was scattered
        again = np.where(shard.sequence_parallel, gathers, 0.0)
        repeated = np.where(repeats(setting, shard.recompute, "operators"), again, repeated)
    backward = shown + repeated
    if not runs_beside_products(setting, shard):
        return forward, backward
    # User buffers copy between devices, without a kernel in which all ranks meet.
    scatter = ring.pass_seconds(num_bytes)
    gather = ring.pass_seconds(num_bytes * gathered_share(setting))
    shown_forward, shown_backward = pipelined_seconds(setting, shard, gather, scatter, hiding)
    is_sharded = shard.sequence_parallel
    return np.where(is_sharded, shown_forward, forward), np.where(is_sharded, shown_backward, backward)


WIDE_SUMS = 2
"""Of queries and of keys, each way, where a norm goes over all heads of a token."""


def largest_exchanges(setting: Setting) -> tuple[int, int]:
    """Collectives of a layer, forward and backward, that bring all tensor ranks the largest values of what they cast.

    That is of both operands of every product forward, and of each output gradient of which a rank has a part. Sums of
    norms over all heads are as small, and counted with them.
    """
    summed = WIDE_SUMS if "wide_qk_norm" in setting.model.parts else 0
    if setting.matmul_recipe != "fp8-tensorwise" or not setting.implementation.casts_anew:
        return summed, summed
    splits = [matrix.split for matrix in matrices_of(setting) if matrix.columns and matrix.depth]
    return summed + len(splits) - splits.count("nothing"), summed + splits.count("columns")


def _largest_seconds(setting: Setting, shard: Shard) -> tuple[Floats | float, Floats | float]:
    forward, backward = largest_exchanges(setting)
    if not forward:
        return 0.0, 0.0
    t = shard.tensor_parallel_size
    each = ring_of(setting, t, np.ones_like(t)).gather_seconds(2.0 * FLOAT32_BYTES * t)
    return forward * each, backward * each


def selected_seconds(setting: Setting, shard: Shard) -> Floats:
    """Computation of a layer's forward pass that is repeated, 0 for plans that do not select.

    That is `selected_shares` of its products, and all that lies between products.
    """
    tokens, recipe = tokens_of(setting, shard), recipe_of(setting)
    repeated = between_forward(setting, shard)
    # Layers with experts need not have a feed-forward layer beside them.
    for share, (n, k) in zip(selected_shares(setting.model), products_of(setting, shard), strict=False):
        if share:
            repeated = repeated + share * matmul_seconds(setting, tokens, n, k, recipe=recipe)
    return np.where(repeats(setting, shard.recompute, "operators"), repeated, 0.0)


def repeated_seconds(setting: Setting, shard: Shard) -> Floats:
    """Seconds of the two norms and the activation, each of which reads its input and writes its output."""
    norms = NUM_NORMS * 2 * norm_output_bytes(setting, shard)
    activation = (gated_elements(setting)[0] if setting.model.gated_mlp else 2) * activated_bytes(setting, shard)
    seconds = memory_bound_seconds(setting, (norms + activation) * setting.implementation.memory_traffic, NUM_NORMS + 1)
    return np.where(repeats(setting, shard.recompute, "outputs"), seconds, 0.0)


def runs_beside_products(setting: Setting, shard: Shard) -> bool:
    """True if collectives of any plan run beside products: with sequence parallelism, on a GPU, if the trainer can."""
    can = setting.implementation.tensor_overlap > 0 and setting.cluster.device.kind == "gpu"
    return can and bool(np.any(shard.sequence_parallel))


def pipelined_seconds(
    setting: Setting, shard: Shard, gather: Floats, scatter: Floats, weight_gradients: list[Floats]
) -> tuple[Floats, Floats]:
    """Return the seconds of a layer's collectives that show, forward and backward with the repeated forward.

    Args:
        gather, scatter: seconds of one of either, alone.
        weight_gradients: of the two products that are split by columns.
    """
    tokens, recipe = tokens_of(setting, shard), recipe_of(setting)
    sizes = paired_products_of(setting, shard)
    forward: Floats = np.asarray(0.0)
    backward: Floats = np.asarray(0.0)
    for index, (n, k) in enumerate(sizes):
        collective = gather if index % 2 == 0 else scatter
        forward = forward + _beside(setting, collective, matmul_seconds(setting, tokens, n, k, recipe=recipe))
        backward = backward + _beside(setting, gather, matmul_seconds(setting, tokens, k, n, recipe=recipe))
    for gradient in weight_gradients:
        backward = backward + _beside(setting, scatter, gradient)
    repeated = np.where(repeats(setting, shard.recompute, "layer"), forward, 0.0)
    return forward, backward + repeated + _gathered_again(setting, shard, gather)


def _gathered_again(setting: Setting, shard: Shard, gather: Floats) -> Floats | float:
    """Gathers of the two products that a selection of operators makes again; what was scattered it keeps."""
    if not setting.implementation.selective_operators:
        return 0.0
    return np.where(repeats(setting, shard.recompute, "operators"), 2.0 * setting.own_scale.shown * gather, 0.0)


def _beside(setting: Setting, comm: Floats, product: Floats) -> Floats:
    """Seconds that show of a collective in pieces beside its product."""
    return shown_seconds(setting, comm, product, setting.implementation.tensor_overlap)


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
