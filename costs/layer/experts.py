"""A layer with experts: what it costs instead of, or beside, an ordinary feed-forward layer.

Every rank routes its own tokens, sends `top_k` copies of each to the ranks of their experts, or one to each node that
has any of them, multiplies what it got, expert by expert in one grouped product, and sends the results back. Where
tensor ranks share out each expert, they gather the copies that any of them got, and scatter the results. Source:
Megatron-Core, moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher; arXiv 2006.16668.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from conf.types.model_spec import ExpertsSpec
from costs.collectives import exchange_seconds, ring_of, shown_seconds
from costs.counts.parameters import Matrix, feed_forward_matrices
from costs.kernels import Number, matmul_seconds, memory_bound_seconds, recipe_of
from costs.layer.layer_bytes import casts_of, kept_operand_bytes, norm_bytes
from costs.layer.layer_costs import LayerCosts, backward_waits, fullest_bytes, layer_costs, waiting_seconds
from costs.layer.layer_time import EAGER_GATED, anew_seconds, gated_elements
from costs.layer.shard import Shard, activated_bytes, held_tokens_of, norm_output_bytes
from costs.setting import Floats, Integers, Setting, repeats

ROUTING_KERNELS = 20  # scores, top k, counts, sorting, and the loss that balances; assumed
MOVES_KERNELS = 6  # permuting before and after each exchange, and the activation
FORWARD, BACKWARD = 0, 1
CAPPED_ELEMENTS = 8, 15
"""Of a trainer with `unfused_expert_biases`, for each unit of an expert, forward and backward: both halves of what
enters the activation are capped and joined again. Source: Megatron-Core, fusions/fused_bias_geglu.py,
weighted_bias_quick_geglu_impl, counted in torch's operations, as are those below."""
BIASED_ELEMENTS, WIDELY_BIASED_ELEMENTS = (6, 8), (14, 20)
"""The same for each hidden unit: every expert's second bias is weighted and added to its rows, and these are joined
again. Dispatchers other than all-to-all give weights in fp32, so that sums are in fp32 until they are joined. Source:
Megatron-Core, moe/experts.py, TEGroupedMLP._apply_bias; moe/token_dispatcher.py."""
BIASING_KERNELS, BIASING_KERNELS_EACH = (4, 8), (2, 4)  # the latter for every expert of the rank


@dataclass(frozen=True, slots=True)
class Routed:
    """The tokens that reach the experts of a rank, and the share that it has of experts, in columns, (n,).

    Attributes:
        tokens: of which the rank decides where they go.
        copies: that it sends, `top_k` of each token; no more than capacity allows.
        rows: that its experts multiply.
        num_experts: of which it holds at least parts.
        rows_each: rows of one of them.
        tensor_parallel_size: ranks that share out each of them.
        expert_parallel_size: ranks over which all are spread.
    """

    tokens: Integers
    copies: Integers
    rows: Integers
    num_experts: Integers
    rows_each: Integers
    tensor_parallel_size: Integers
    expert_parallel_size: Integers


def experts_of(setting: Setting) -> ExpertsSpec:
    assert setting.model.experts is not None
    return setting.model.experts


def route(setting: Setting, shard: Shard) -> Routed:
    experts, e = experts_of(setting), shard.expert_parallel_size
    split = setting.expert_tensor_size(shard.tensor_parallel_size)
    tokens = held_tokens_of(setting, shard)
    padded = (setting.implementation.pads_experts and experts.capacity_factor) or 1.0
    copies = np.ceil(tokens * experts.top_k * padded).astype(np.int64)
    # Without sequence parallelism tensor ranks hold the same tokens, so that there is nothing to gather.
    gathered = np.where(shard.sequence_parallel, split, 1)
    rows = np.ceil(copies * gathered * experts.imbalance).astype(np.int64)
    num_experts = np.maximum(experts.num_experts // e, 1)
    return Routed(tokens, copies, rows, num_experts, -(-rows // num_experts), split, e)


def expert_layer_costs(setting: Setting, shard: Shard) -> LayerCosts:
    """A layer whose feed-forward layer is that of the shared expert, if there is one, with the experts beside it."""
    width = {"ffn_hidden_size": experts_of(setting).shared_ffn_hidden_size}
    without = replace(setting, model=setting.model.model_copy(update=width))
    plain = layer_costs(without, shard)
    sent, whole = route(setting, shard), repeats(setting, shard.recompute, "layer")
    forward, backward = _forward(setting, sent), _input_gradient(setting, sent)
    weights = _weight_gradients(setting, sent)
    exchange, held = _exchange(setting, shard, sent), _kept_bytes(setting, sent)
    host_forward, host_input, host_weights = _launch_seconds(setting, sent)
    # The device waits for these launches in any case; the host's others show where they outlast the device's work.
    awaited = _awaited_seconds(setting)
    waits = awaited + waiting_seconds(setting, host_forward - awaited, forward + awaited + exchange)
    early, late = backward_waits(setting, host_input, host_weights, backward + exchange, weights)
    forward, backward, weights = forward + waits, backward + early, weights + late
    overlap = setting.implementation.experts_overlap
    shown_forward = shown_seconds(setting, exchange, plain.forward_seconds + forward, overlap)
    shown_backward = shown_seconds(setting, exchange, plain.input_gradient_seconds + backward + weights, overlap)
    # Pointwise recomputation drops the activation's output, and makes it again.
    makes_outputs = repeats(setting, shard.recompute, "outputs")
    elements = np.where(makes_outputs, _activated_elements(setting, sent), 0)
    activated = elements * setting.dtype_bytes
    kept = np.where(whole, 0, held - (elements * kept_operand_bytes(setting)).astype(np.int64))
    is_deferring = setting.implementation.defers_experts
    # Full recomputation runs the experts again; pointwise reads two inputs of the activation and writes its output.
    again = np.where(whole, forward, memory_bound_seconds(setting, 3 * activated, makes_outputs.astype(np.int64)))
    # A trainer that does not defer experts' weight gradients makes them within the backward pass. `deferred_bytes` is a
    # difference to the bytes kept, so that it falls by what is kept more.
    return replace(
        plain,
        forward_seconds=plain.forward_seconds + forward,
        input_gradient_seconds=plain.input_gradient_seconds + backward + again + (0.0 if is_deferring else weights),
        weight_gradient_seconds=plain.weight_gradient_seconds + (weights if is_deferring else 0.0),
        tensor_forward_seconds=plain.tensor_forward_seconds + shown_forward,
        tensor_backward_seconds=plain.tensor_backward_seconds + shown_backward + np.where(whole, shown_forward, 0.0),
        waiting_seconds=plain.waiting_seconds + np.where(whole, 2.0, 1.0) * waits + early + late,
        kept_bytes=plain.kept_bytes + kept,
        deferred_bytes=plain.deferred_bytes + (_deferred_bytes(setting, sent) if is_deferring else 0) - kept,
        working_bytes=_working_bytes(without, shard, sent, plain) + np.where(whole, held, activated),
    )


def _activated_elements(setting: Setting, sent: Routed) -> Integers:
    """Elements that the activation puts out."""
    return sent.rows * (experts_of(setting).ffn_hidden_size // sent.tensor_parallel_size)


def _matrices(setting: Setting) -> tuple[Matrix, ...]:
    return feed_forward_matrices(setting.model, experts_of(setting).ffn_hidden_size)


def _products(setting: Setting, sent: Routed) -> tuple[tuple[Integers | int, Integers | int], ...]:
    """Columns and depth of an expert's products on one rank."""
    (up, h, _), (_, down, _) = _matrices(setting)
    return ((up // sent.tensor_parallel_size, h), (h, down // sent.tensor_parallel_size))


def _groups_passes(setting: Setting) -> bool:
    """True if torch's kernel makes the products of all experts, forward and to the input."""
    device = setting.cluster.device
    since_hopper = device.kind == "gpu" and device.maker == "nvidia" and "fp8" in device.peak_flops_per_second
    is_taken = setting.dtype == "bf16" and recipe_of(setting) is None
    return setting.implementation.groups_passes and since_hopper and is_taken


def _product_of_all(
    setting: Setting, sent: Routed, rows: Number, columns: Number, depth: Number, *, in_pass: bool
) -> Floats:
    """Seconds of one product of every expert of a rank.

    Their tiles fill the device together, as one kernel does, or several streams; else one expert follows the other.
    """
    count, recipe = sent.num_experts, recipe_of(setting)
    if setting.implementation.groups_experts or (in_pass and _groups_passes(setting)):
        return matmul_seconds(setting, rows, columns, depth, count, recipe=recipe)
    return count * matmul_seconds(setting, rows, columns, depth, recipe=recipe)


def _forward(setting: Setting, sent: Routed) -> Floats:
    sizes = _products(setting, sent)
    products = sum(_product_of_all(setting, sent, sent.rows_each, n, k, in_pass=True) for n, k in sizes)
    router = matmul_seconds(setting, sent.tokens, experts_of(setting).num_experts, setting.model.hidden_size)
    casts = _casts(setting, sent, sizes, is_forward=True)
    return products + router + casts + _moves(setting, sent, FORWARD)


def _input_gradient(setting: Setting, sent: Routed) -> Floats:
    sizes = _products(setting, sent)
    products = sum(_product_of_all(setting, sent, sent.rows_each, k, n, in_pass=True) for n, k in sizes)
    router = matmul_seconds(setting, sent.tokens, setting.model.hidden_size, experts_of(setting).num_experts)
    casts = _casts(setting, sent, sizes, is_forward=False)
    return products + router + casts + _moves(setting, sent, BACKWARD)


def _activation_elements(setting: Setting) -> tuple[int, int]:
    """Elements per unit of an expert that its activation reads and writes, forward and backward.

    Operation by operation each result is weighted as well: forward by one more pass over it (2), and backward by passes
    over both gradients (4) and by a product that is summed for the weight's own gradient (4). Source:
    `weighted_gated_product` of train_core/model/mixture.py.
    """
    if not setting.model.gated_mlp:
        return 2, 3
    if not setting.implementation.is_eager:  # experts are never compiled
        return gated_elements(setting)
    forward, backward = EAGER_GATED
    return forward + 2, backward + 8


def _weight_gradients(setting: Setting, sent: Routed) -> Floats:
    sizes = _products(setting, sent)
    products = sum(_product_of_all(setting, sent, n, k, sent.rows_each, in_pass=False) for n, k in sizes)
    router = matmul_seconds(setting, experts_of(setting).num_experts, setting.model.hidden_size, sent.tokens)
    # What has been added up so far is read and written. The few rows of an expert do not hide that, as those of other
    # products do, where it is a part of what `matmul` was fitted on.
    elements = sum(n * k for n, k in sizes) * sent.num_experts
    return np.asarray(products + router + memory_bound_seconds(setting, elements * 2 * setting.gradient_bytes, 0))


def _awaited_seconds(setting: Setting) -> float:
    """Seconds of a forward pass in which the device waits while the host launches all but the experts' products.

    Where nothing limits the copies, the host waits until the device has counted those for each expert, without which it
    knows no sizes; so nothing is launched ahead, and the device waits in turn until the first product comes. Source:
    Megatron-Core, moe/token_dispatcher.py, `cuda_sync_point`. HybridEP sorts in the kernels of its exchange, and waits
    in them: this sum would make the rows that have it a quarter too slow.
    """
    is_padded = setting.implementation.pads_experts and experts_of(setting).capacity_factor is not None
    if is_padded or setting.expert_dispatcher == "hybridep":
        return 0.0
    return (ROUTING_KERNELS + MOVES_KERNELS - _graphed(setting)) * _one_launch_seconds(setting)


def _graphed(setting: Setting) -> int:
    """Kernels of routing that a graph launches and not the host."""
    return ROUTING_KERNELS if setting.implementation.graphs_layers else 0


def _one_launch_seconds(setting: Setting) -> float:
    """Seconds of the host for one kernel: none on a CPU, whose rank computes where it would launch."""
    is_cpu = setting.cluster.device.kind == "cpu"
    return 0.0 if is_cpu else setting.implementation.launch_seconds * setting.cluster.efficiency.launch


def _launch_seconds(setting: Setting, sent: Routed) -> tuple[Floats, Floats, Floats]:
    """Seconds of the host for routing, permuting and experts' products and casts, as `layer_costs.launch_seconds`."""
    recipe = recipe_of(setting)
    casts = 0 if recipe is None else 2 * recipe.kernels
    apart = 2 * sent.num_experts
    if _groups_passes(setting):
        forward = backward = np.asarray(2)
    else:
        forward = backward = apart + casts * sent.num_experts
    one, graphed = _one_launch_seconds(setting), _graphed(setting)
    forward, backward = forward + _beside(setting, sent, FORWARD), backward + _beside(setting, sent, BACKWARD)
    return (forward - graphed) * one, (backward - graphed) * one, apart * one


def _beside(setting: Setting, sent: Routed, way: int) -> Integers | int:
    """Kernels of one way beside products and casts."""
    kernels = ROUTING_KERNELS + MOVES_KERNELS
    if setting.implementation.unfused_expert_biases:
        return kernels + BIASING_KERNELS[way] + BIASING_KERNELS_EACH[way] * sent.num_experts
    return kernels


def _biased_elements(setting: Setting) -> tuple[tuple[int, int], tuple[int, int]]:
    """Elements per unit of an expert and per hidden unit that capping and adding biases move, forward and backward."""
    if not setting.implementation.unfused_expert_biases:
        return (0, 0), (0, 0)
    return CAPPED_ELEMENTS, BIASED_ELEMENTS if setting.expert_dispatcher == "alltoall" else WIDELY_BIASED_ELEMENTS


def _casts(
    setting: Setting, sent: Routed, sizes: tuple[tuple[Integers | int, Integers | int], ...], *, is_forward: bool
) -> Floats | float:
    """Seconds of casting the rows that products of these columns and depths take, where they multiply narrow types."""
    recipe = recipe_of(setting)
    if recipe is None:
        return 0.0
    columns, depth = (sent.rows * (up + down) for up, down in zip(*sizes, strict=True))
    if setting.implementation.casts_anew:
        weights = sum(n * k for n, k in sizes) * sent.num_experts
        plain, transposed = (depth + weights, 0) if is_forward else (columns, weights + columns + depth)
        return anew_seconds(setting, plain, transposed, (2 if is_forward else 4) * len(sizes) * sent.num_experts)
    each = recipe.cast_bytes(setting.dtype_bytes) + recipe.transposed_bytes(setting.cluster.device)
    return memory_bound_seconds(setting, (depth if is_forward else columns) * each, 2 * recipe.kernels)


def _moves(setting: Setting, sent: Routed, way: int) -> Floats:
    """Routing, permuting and the activation, all bound by memory bandwidth, or by their launches.

    Copies are written before they are sent and added up after they came back; those that were got are sorted by expert
    and back again, where a rank has several experts or shares them.
    """
    h, f = setting.model.hidden_size, experts_of(setting).ffn_hidden_size
    capped, biased = _biased_elements(setting)
    is_sorted = (sent.num_experts > 1) & (sent.expert_parallel_size > 1)
    # Each move reads and writes: tokens to copies and back are two, and sorting and its reverse four of every row.
    permuted = 2 * (sent.tokens + sent.copies) + np.where(is_sorted, 4 * sent.rows, 0) + biased[way] * sent.rows
    activation = _activation_elements(setting)[way] + capped[way]
    num_elements = permuted * h + sent.rows * (activation * f // sent.tensor_parallel_size)
    moved = num_elements * setting.dtype_bytes * setting.implementation.memory_traffic
    return memory_bound_seconds(setting, moved, _beside(setting, sent, way))


def _exchange(setting: Setting, shard: Shard, sent: Routed) -> Floats:
    """Seconds of dispatching and combining, each carried out once each way; `experts_overlap` may hide some of them."""
    width = float(setting.model.hidden_size * setting.dtype_bytes)
    split, one = sent.tensor_parallel_size, np.ones_like(shard.tensor_parallel_size)
    sends, e = sent.copies * width, sent.expert_parallel_size
    once = None if setting.expert_dispatcher == "alltoall" else experts_of(setting).top_k
    between = exchange_seconds(setting, sends, e, split, once)
    # Without sequence parallelism only results are summed over tensor ranks, as those of any feed-forward layer.
    rows = np.where(shard.sequence_parallel, sent.rows, sent.tokens)
    inside = ring_of(setting, split, one).gather_seconds(rows * width)
    return 2.0 * (between + inside)


def _kept_bytes(setting: Setting, sent: Routed) -> Integers:
    """Bytes kept for backward: the rows that came and both sides of the activation, by which results are weighted."""
    width = kept_operand_bytes(setting)
    (up, h, _), (_, down, _) = _matrices(setting)
    # The rows and the way down's inputs are operands, and narrow where those are; the way up's outputs are wide, and so
    # is what capping makes of them in a pass of its own.
    wide = 2 * up if setting.implementation.unfused_expert_biases else up
    split = (wide * setting.dtype_bytes + down * width) / sent.tensor_parallel_size
    return (sent.rows * (h * width + split)).astype(np.int64)


def _deferred_bytes(setting: Setting, sent: Routed) -> Integers:
    """Bytes of inputs and output gradients of the experts' products."""
    split: Integers = sum(matrix.columns + matrix.depth for matrix in _matrices(setting)) // sent.tensor_parallel_size
    return sent.rows * split * setting.dtype_bytes


def _working_bytes(without: Setting, shard: Shard, sent: Routed, plain: LayerCosts) -> Integers:
    """Bytes of gradients at the fullest moment of backward: that of the experts, or of the rest of the layer.

    The experts' is the weight gradient of the way down, next to the gradients of its rows and of their results; or,
    with a gate, when both of its gradients are put together from their halves, as in any feed-forward layer. No
    sequence is gathered then. Of trainers whose moments are not counted, it is all of them together.

    Args:
        without: the setting of the layer without its experts, whose costs are `plain`.
    """
    h, inside = (
        without.model.hidden_size,
        sent.rows * (experts_of(without).ffn_hidden_size // sent.tensor_parallel_size),
    )
    if not without.implementation.counted_moments:
        return plain.working_bytes + (sent.rows * h + 2 * inside) * without.dtype_bytes
    of_rest, width, rows = fullest_bytes(without, shard), without.dtype_bytes, sent.rows * h
    (up, _), (_, down) = _products(without, sent)
    # Narrow products of one expert follow those of another, and in each the casts of operands are there as well.
    of_down, of_up = (
        casts_of(without, sent.rows_each, *matrix, pads=True).to_weight for matrix in ((h, down), (up, h))
    )
    moments = (rows + inside) * width + of_down, (rows - inside) * width + of_up
    # When the norm before them runs backward, what they and a shared one kept is gone, as is the norm's own output.
    normed, sides = norm_output_bytes(without, shard), (3 if without.model.gated_mlp else 2)
    gone = _kept_bytes(without, sent) + sides * activated_bytes(without, shard) + normed
    others = np.maximum(4 * inside * width, norm_bytes(without, normed) - gone)
    fullest = np.maximum(np.maximum(*moments), others) - plain.gathered_bytes
    return plain.working_bytes - of_rest + np.maximum(of_rest, fullest)
