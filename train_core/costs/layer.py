"""Time and memory of one transformer layer, for one micro-batch on one rank.

Everything here depends on four choices only - tensor-parallel size, micro-batch, sequence parallelism, recomputation -
so that a search prices each combination once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from conf.knobs import RECOMPUTES
from conf.units import FLOAT32_BYTES
from train_core.attention_rules import flash_runs
from train_core.costs.collectives import all_reduce_seconds, gather_seconds
from train_core.costs.kernels import attention_seconds, matmul_seconds, memory_bound_seconds
from train_core.costs.setting import Booleans, Floats, Integers, Setting

FLASH_BACKWARD_TO_FORWARD = 2.5  # five products against two; source: arXiv 2205.14135, appendix B
FORWARD_KERNELS = 8  # norms, residual additions, activation, head permutations: memory-bound ones of a layer
BACKWARD_KERNELS = 14
NONE, SELECTIVE, FULL = (RECOMPUTES.index(name) for name in ("none", "selective", "full"))


@dataclass(frozen=True, slots=True)
class Shard:
    """The choices that a layer's cost depends on, in columns, (n,)."""

    tensor_parallel_size: Integers
    micro_batch_size: Integers
    sequence_parallel: Booleans
    recompute: Integers


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Columns, (n,): seconds of one micro-batch in one layer, and bytes it keeps from forward to backward.

    Attributes:
        forward_seconds: forward computation without collectives; so are the next two.
        input_gradient_seconds: backward to the input, recomputation included.
        weight_gradient_seconds: backward to the weights, which zero-bubble schedules defer.
        tensor_forward_seconds: tensor-parallel collectives that computation does not hide.
        tensor_backward_seconds: the same, those of the repeated forward included.
        kept_bytes: held for every micro-batch in flight.
        deferred_bytes: bytes held on top (or less) for a micro-batch of which only weight gradients are to come.
        working_bytes: further bytes held while one layer runs backward, without the gradient of its output.
        gathered_bytes: the whole sequence that sequence parallelism gathers meanwhile.
    """

    forward_seconds: Floats
    input_gradient_seconds: Floats
    weight_gradient_seconds: Floats
    tensor_forward_seconds: Floats
    tensor_backward_seconds: Floats
    kept_bytes: Integers
    deferred_bytes: Integers
    working_bytes: Integers
    gathered_bytes: Integers

    def rows(self, selection: Integers) -> LayerCosts:
        """The entries at `selection`, in that order."""
        return LayerCosts(*(getattr(self, name)[selection] for name in self.__slots__))


def layer_costs(setting: Setting, shard: Shard) -> LayerCosts:
    forward, core = _projections_forward(setting, shard), _core_forward(setting, shard)
    repeated = np.where(shard.recompute == FULL, forward + core, np.where(shard.recompute == SELECTIVE, core, 0.0))
    weight_gradients = _weight_gradients(setting, shard)
    # Only the products split by columns reduce their input's gradient, so only their weight gradients hide that.
    tensor_forward, tensor_backward = _tensor_seconds(setting, shard, weight_gradients[::2])
    kept = kept_bytes(setting, shard, shard.recompute)
    whole = kept_bytes(setting, shard, np.full_like(shard.recompute, NONE))
    return LayerCosts(
        forward_seconds=forward + core,
        input_gradient_seconds=_projections_input_gradient(setting, shard) + _core_backward(setting, shard) + repeated,
        weight_gradient_seconds=np.asarray(sum(weight_gradients)),
        tensor_forward_seconds=tensor_forward,
        tensor_backward_seconds=tensor_backward,
        kept_bytes=kept,
        deferred_bytes=_deferred_bytes(setting, shard) - kept,
        working_bytes=np.where(shard.recompute == NONE, 0, whole - kept) + _gradient_bytes(setting, shard),
        gathered_bytes=np.where(shard.sequence_parallel, _hidden_bytes(setting, shard), 0),
    )


def _tokens(setting: Setting, shard: Shard) -> Integers:
    return shard.micro_batch_size * setting.model.seq_length


def _held_tokens(setting: Setting, shard: Shard) -> Integers:
    """Tokens of the parts between matrix products: a share of each sequence under sequence parallelism."""
    tokens = _tokens(setting, shard)
    return np.where(shard.sequence_parallel, tokens // shard.tensor_parallel_size, tokens)


def _products(setting: Setting, shard: Shard) -> tuple[tuple[Integers | int, Integers | int], ...]:
    """Columns and depth of the four matrix products of a layer on one rank; each has a row per token."""
    model, t = setting.model, shard.tensor_parallel_size
    h, f = model.hidden_size, model.ffn_hidden_size // t
    q, kv = model.query_size // t, model.key_value_size // t
    return ((q + 2 * kv, h), (h, q), ((2 if model.gated_mlp else 1) * f, h), (h, f))


def _projections_forward(setting: Setting, shard: Shard) -> Floats:
    tokens = _tokens(setting, shard)
    products = sum(matmul_seconds(setting, tokens, n, k) for n, k in _products(setting, shard))
    return products + _between_products(setting, shard, held=10, gelu=2, gated=3, kernels=FORWARD_KERNELS)


def _projections_input_gradient(setting: Setting, shard: Shard) -> Floats:
    tokens = _tokens(setting, shard)
    products = sum(matmul_seconds(setting, tokens, k, n) for n, k in _products(setting, shard))
    return products + _between_products(setting, shard, held=14, gelu=3, gated=5, kernels=BACKWARD_KERNELS)


def _weight_gradients(setting: Setting, shard: Shard) -> list[Floats]:
    """Seconds for each matrix in the order of `_products`, where splits by columns and by rows alternate."""
    tokens = _tokens(setting, shard)
    return [matmul_seconds(setting, n, k, tokens) for n, k in _products(setting, shard)]


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
    between = _held_tokens(setting, shard) * (held * model.hidden_size * setting.dtype_bytes + masks)
    inside = _tokens(setting, shard) * (activation + moved_heads) * setting.dtype_bytes // t
    return memory_bound_seconds(setting, (between + inside) * implementation.memory_traffic, kernels)


def _scores(setting: Setting, shard: Shard) -> Integers:
    """Elements of the attention scores on one rank."""
    heads = setting.model.num_attention_heads // shard.tensor_parallel_size
    return shard.micro_batch_size * heads * setting.model.seq_length**2


def _causal_flops(setting: Setting, shard: Shard) -> Integers:
    """FLOPs of a flash kernel, which computes scores and weighted values of the lower triangle alone."""
    return 2 * _scores(setting, shard) * (setting.model.query_size // setting.model.num_attention_heads)


def _core_forward(setting: Setting, shard: Shard) -> Floats:
    if setting.implementation.flash_attention:
        return attention_seconds(setting, _causal_flops(setting, shard))
    # Two batched products with a softmax between them. They know nothing of the mask and compute the full square.
    s, count, size = _heads(setting, shard)
    passes = 2 + (2 if setting.implementation.dropout else 0)
    softmax = _scores(setting, shard) * (passes * setting.dtype_bytes + int(setting.implementation.dropout))
    products = matmul_seconds(setting, s, s, size, count) + matmul_seconds(setting, s, size, s, count)
    return products + memory_bound_seconds(setting, softmax, passes // 2)


def _core_backward(setting: Setting, shard: Shard) -> Floats:
    if setting.implementation.flash_attention:
        return attention_seconds(setting, FLASH_BACKWARD_TO_FORWARD * _causal_flops(setting, shard))
    s, count, size = _heads(setting, shard)
    passes = 3 + (2 if setting.implementation.dropout else 0)
    softmax = _scores(setting, shard) * (passes * setting.dtype_bytes + int(setting.implementation.dropout))
    products = matmul_seconds(setting, s, s, size, count) + 3.0 * matmul_seconds(setting, s, size, s, count)
    return products + memory_bound_seconds(setting, softmax, 2)


def _heads(setting: Setting, shard: Shard) -> tuple[int, Integers, int]:
    """Sequence length, number of batched products and size of a head on one rank."""
    model = setting.model
    heads = model.num_attention_heads // shard.tensor_parallel_size
    return model.seq_length, shard.micro_batch_size * heads, model.query_size // model.num_attention_heads


def _tensor_seconds(setting: Setting, shard: Shard, hiding: list[Floats]) -> tuple[Floats, Floats]:
    """Two all-reduces each way, or as many gathers and scatters; a repeated forward repeats them.

    Args:
        hiding: the weight gradients beside which the input gradients of the same two products can be reduced.

    Source: arXiv 2104.04473, section 3.2; arXiv 2205.05198, section 4.2.2 (sequence parallelism gathers its inputs
    again for the weight gradient).
    """
    t = shard.tensor_parallel_size
    num_bytes = _tokens(setting, shard) * setting.model.hidden_size * float(setting.dtype_bytes)
    stride = np.ones_like(t)
    forward = 2.0 * all_reduce_seconds(setting, num_bytes, t, stride)
    gathers = 2.0 * gather_seconds(setting, num_bytes, t, stride)
    # On a CPU the cores that would compute meanwhile carry out the collectives, so that nothing is hidden.
    if setting.implementation.overlaps_weight_gradient and setting.cluster.device.kind == "gpu":
        reduction = np.where(shard.sequence_parallel, gathers, forward) / 2.0
        shown = np.where(shard.sequence_parallel, gathers, 0.0)
        shown = shown + sum(np.maximum(reduction - gradient, 0.0) for gradient in hiding)
    else:
        shown = forward + np.where(shard.sequence_parallel, gathers, 0.0)
    return forward, shown + np.where(shard.recompute == FULL, forward, 0.0)


def kept_bytes(setting: Setting, shard: Shard, recompute: Integers) -> Integers:
    """What one layer keeps for backward, counted exactly (tests hold it against the real layer).

    The inputs of both norms and of both column products are whole on every tensor-parallel rank, unless sequence
    parallelism shards them; queries, keys, values, the attention's output and both sides of the activation are split.
    Source: arXiv 2205.05198, section 4.
    """
    model, implementation, width = setting.model, setting.implementation, setting.dtype_bytes
    tokens, held, t = _tokens(setting, shard), _held_tokens(setting, shard), shard.tensor_parallel_size
    masks = 2 * model.hidden_size if implementation.dropout else 0
    whole = held * ((4 * model.hidden_size + implementation.norm_statistics) * width + masks)
    units = 2 * model.query_size + 2 * model.key_value_size + (3 if model.gated_mlp else 2) * model.ffn_hidden_size
    split = tokens * units // t * width
    core = np.where(recompute == NONE, _core_kept_bytes(setting, shard), 0)
    return np.where(recompute == FULL, held * model.hidden_size * width, whole + split + core)


def _deferred_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes of inputs and output gradients of the four products; sequence parallelism shards one of each product."""
    ends = _held_tokens(setting, shard) * 4 * setting.model.hidden_size
    (qkv, _), (_, q), (up, _), (_, f) = _products(setting, shard)
    split = _tokens(setting, shard) * (qkv + q + up + f)
    return (ends + split) * setting.dtype_bytes


def _core_kept_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes of the softmax, its dropout mask and the result of that.

    Of a fused kernel those of its log-sum-exp, and what keys and values grow by where they are repeated for it.
    """
    implementation, width = setting.implementation, setting.dtype_bytes
    if implementation.flash_attention:
        heads, model = setting.model.num_attention_heads // shard.tensor_parallel_size, setting.model
        repeated = 2 * (model.query_size - model.key_value_size) // shard.tensor_parallel_size
        grown = 0 if _takes_groups(setting) else repeated * width
        return _tokens(setting, shard) * (heads * implementation.log_sum_exp_bytes + grown)
    return _scores(setting, shard) * (2 * width + 1 if implementation.dropout else width)


def _takes_groups(setting: Setting) -> bool:
    """Whether the device's fused kernel takes the keys and values of groups as they are, as that of a CPU does."""
    device, model = setting.cluster.device, setting.model
    head_size = model.query_size // model.num_attention_heads
    has_bf16 = "bf16" in device.peak_flops_per_second
    return device.kind == "cpu" or flash_runs(setting.dtype_bytes, head_size, has_bf16=has_bf16)


def _gradient_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes that the fullest moment of a layer's backward holds beside the layer's activations.

    That moment is the weight gradient of the way down, next to the gradient of its input; or that of the way up, next
    to the gradient of the hidden state, when both sides of the activation are gone and one gradient is left; or the end
    of a repeated forward pass, whose output is there once more.
    """
    model, width = setting.model, setting.dtype_bytes
    if not setting.implementation.counted_moments:
        both = _tokens(setting, shard) * (2 * model.ffn_hidden_size // shard.tensor_parallel_size)
        return (both + 2 * _held_tokens(setting, shard) * model.hidden_size) * width
    inside = _tokens(setting, shard) * (model.ffn_hidden_size // shard.tensor_parallel_size) * width
    (up, _), (_, down) = _products(setting, shard)[2:]
    made = setting.weight_gradient_copy_bytes * model.hidden_size
    hidden = _hidden_bytes(setting, shard)
    fullest: Integers = np.maximum(inside + made * down, hidden - inside + made * up)
    return np.where(shard.recompute == FULL, np.maximum(fullest, hidden), fullest)


def _hidden_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes of a whole activation between layers."""
    return _tokens(setting, shard) * setting.model.hidden_size * setting.dtype_bytes


class EndBytes(NamedTuple):
    """What the last stage holds beside its layers' activations at its fullest moment, in columns, (n,).

    Attributes:
        activations: inputs of the final norm and of the head.
        working: gradients and what is recomputed.
        logits: in whatever copies there are of them.
        gathered: the whole sequence that sequence parallelism gathers.
        received: inputs that have arrived, or are about to, and what is being scattered.
    """

    activations: Integers
    working: Integers
    logits: Integers
    gathered: Integers
    received: Integers


def end_bytes(setting: Setting, shard: Shard, layer: LayerCosts) -> EndBytes:
    """The fullest of three moments: the loss (logits, and an fp32 copy where they are not fp32), the head's weight
    gradient, and the backward pass of the last layer.
    """
    model, width, tokens = setting.model, setting.dtype_bytes, _tokens(setting, shard)
    held, hidden = _held_tokens(setting, shard) * model.hidden_size * width, _hidden_bytes(setting, shard)
    rows, none = model.vocab_size // shard.tensor_parallel_size, np.zeros_like(tokens)
    copies = FLOAT32_BYTES + (width if setting.dtype != "fp32" else 0)
    made = setting.weight_gradient_copy_bytes * model.hidden_size * rows
    logits, gathered = tokens * rows * copies, layer.gathered_bytes
    scattered = np.where(shard.sequence_parallel, held, 0)  # the head's input gradient, on its way
    if not setting.implementation.counted_moments:
        softmax = tokens * rows * FLOAT32_BYTES  # which others do not make in place
        return EndBytes(2 * held, layer.working_bytes, logits + softmax, gathered, 2 * held)
    moments = (
        EndBytes(2 * held, none, logits, none, held),
        EndBytes(2 * held, hidden + made, tokens * rows * width, gathered, held + scattered),
        EndBytes(none, layer.working_bytes + held, none, gathered, held),
    )
    fullest = np.argmax(np.array([np.sum(np.array(moment), axis=0) for moment in moments]), axis=0)
    return EndBytes(*(np.choose(fullest, columns) for columns in zip(*moments, strict=True)))


def head_costs(setting: Setting, shard: Shard) -> tuple[Floats, Floats, Floats, Floats]:
    """The output projection and its loss: forward, input gradient and weight gradient seconds, and the
    vocabulary-parallel reductions.

    Source: arXiv 1909.08053, section 3 (only scalars per token are reduced for the loss).
    """
    model, t, tokens = setting.model, shard.tensor_parallel_size, _tokens(setting, shard)
    h, vocab = model.hidden_size, model.vocab_size // t
    elements = tokens * vocab
    loss = memory_bound_seconds(setting, elements * (2 * setting.dtype_bytes + 3 * FLOAT32_BYTES), 4)
    gradient = memory_bound_seconds(setting, elements * (setting.dtype_bytes + FLOAT32_BYTES), 2)
    scalars = (3 * tokens * FLOAT32_BYTES).astype(np.float64)
    hidden = (tokens * h * setting.dtype_bytes).astype(np.float64)
    reduced = all_reduce_seconds(setting, scalars, t, np.ones_like(t)) + all_reduce_seconds(
        setting, hidden, t, np.ones_like(t)
    )
    return (
        matmul_seconds(setting, tokens, vocab, h) + loss,
        matmul_seconds(setting, tokens, h, vocab) + gradient,
        matmul_seconds(setting, vocab, h, tokens),
        reduced,
    )
