"""Bytes that one layer keeps for backward, and holds while it runs backward, for one micro-batch on one rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conf.types.model_spec import ModelSpec
from conf.units import FLOAT32_BYTES
from costs.counts.parameters import NUM_NORMS, norms_follow, num_norms
from costs.kernels import recipe_of
from costs.layer.shard import (
    Shard,
    activated_bytes,
    held_tokens_of,
    hidden_bytes_of,
    matrices_of,
    norm_output_bytes,
    scores_of,
    tokens_of,
)
from costs.setting import Integers, Setting, repeats
from costs.shared_rules import flash_runs


def kept_bytes(setting: Setting, shard: Shard, recompute: Integers) -> Integers:
    """Count the bytes that one layer keeps for backward, exactly (tests compare them with the real layer's).

    The inputs of both norms and of both column products are whole on every tensor-parallel rank, unless sequence
    parallelism shards them; queries, keys, values, the attention's output and both sides of the activation are split.
    Source: arXiv 2205.05198, section 4.
    """
    model, implementation, width = setting.model, setting.implementation, setting.dtype_bytes
    tokens, held, t = tokens_of(setting, shard), held_tokens_of(setting, shard), shard.tensor_parallel_size
    # Inputs of both norms and of both column products are four vectors of the hidden size; dropout's masks have a byte
    # for each element.
    masks = 2 * model.hidden_size if implementation.dropout else 0
    statistics = implementation.norm_statistics * (num_norms(model) + num_short_norms_of(model)) // NUM_NORMS
    # What a norm behind attention or behind the feed-forward network takes is kept too.
    inputs = 2 + num_norms(model)
    vectors = inputs * model.hidden_size + statistics + short_vectors_of(model)
    whole = held * (vectors * width + masks)
    heads = model.query_size + model.key_value_size + model.value_size + model.attended_size
    # An activation has an input and an output; one with a gate two inputs.
    units = heads + (3 if model.gated_mlp else 2) * model.ffn_hidden_size
    split = tokens * units // t * width
    core = np.where(repeats(setting, recompute, "core", "layer"), 0, _core_kept_bytes(setting, shard))
    kept = whole + split + core + rotated_bytes(setting, shard) + kept_difference(setting, shard)
    kept = np.where(repeats(setting, recompute, "operators"), selected_bytes(setting, shard), kept)
    kept = kept - np.where(repeats(setting, recompute, "outputs"), outputs_bytes(setting, shard), 0)
    return np.where(repeats(setting, recompute, "layer"), held * model.hidden_size * width, kept)


def deferred_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes of inputs and output gradients of the four products; sequence parallelism shards one of each product."""
    # A column product's output gradient is split and its input is whole (or in shares), and of a row product the
    # reverse.
    split, ends = 0, 0
    for columns, depth, divided in matrices_of(setting):
        split += {"columns": columns, "rows": depth, "nothing": 0}[divided]
        ends += {"columns": depth, "rows": columns, "nothing": columns + depth}[divided]
    latent = setting.model.latent_attention
    if latent is not None and latent.query_rank is None:
        ends -= setting.model.hidden_size  # an input that the way down and the way up to queries share
    shared = tokens_of(setting, shard) * (split // shard.tensor_parallel_size)
    return (held_tokens_of(setting, shard) * ends + shared) * setting.dtype_bytes


def short_vectors_of(model: ModelSpec) -> int:
    """Elements per token that latent attention keeps of its short vectors, before and after their norms."""
    latent = model.latent_attention
    if latent is None:
        return 0
    return 2 * ((latent.query_rank or 0) + latent.key_value_rank) + latent.rotary_head_size


def num_short_norms_of(model: ModelSpec) -> int:
    """Norms of short vectors; 0 without latent attention."""
    latent = model.latent_attention
    return 0 if latent is None else 1 + (latent.query_rank is not None)


def _core_kept_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes of the softmax, its dropout mask and the result of that.

    Of a fused kernel those of its log-sum-exp, and what keys and values grow by where they are repeated for it.
    """
    implementation, width = setting.implementation, setting.dtype_bytes
    if implementation.flash_attention:
        heads, model = setting.model.num_attention_heads // shard.tensor_parallel_size, setting.model
        repeated = 2 * (model.query_size - model.key_value_size) // shard.tensor_parallel_size
        # Blocks of context ranks repeat them one block at a time, and keep none of it.
        is_grown = (shard.context_parallel_size == 1) & (not _takes_groups(setting))
        grown = np.where(is_grown, repeated * width, 0)
        return tokens_of(setting, shard) * (heads * implementation.log_sum_exp_bytes + grown)
    return scores_of(setting, shard) * (2 * width + 1 if implementation.dropout else width)


def _takes_groups(setting: Setting) -> bool:
    """True if the device's fused kernel takes the keys and values of groups as they are, as that of a CPU does."""
    device, model = setting.cluster.device, setting.model
    head_size = model.query_size // model.num_attention_heads
    has_bf16 = "bf16" in device.peak_flops_per_second
    return device.kind == "cpu" or flash_runs(setting.dtype_bytes, head_size, has_bf16=has_bf16)


def gradient_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes that the fullest moment of a layer's backward holds beside the layer's activations.

    That moment is the weight gradient of the way down, next to the gradient of its input; or, with a gate, when both of
    its gradients are put together from their halves; or the weight gradient of the way up, next to the gradient of the
    hidden state, when both sides of the activation are gone and one gradient is left; or the norm's before that; or the
    end of a repeated forward pass, whose output is there once more.
    """
    model, width = setting.model, setting.dtype_bytes
    makes_outputs = repeats(setting, shard.recompute, "outputs")
    activated = np.where(makes_outputs, activated_bytes(setting, shard), 0)
    if not setting.implementation.counted_moments:
        both = tokens_of(setting, shard) * (2 * model.ffn_hidden_size // shard.tensor_parallel_size)
        return (both + 2 * held_tokens_of(setting, shard) * model.hidden_size) * width + activated
    tokens, down, hidden = (
        tokens_of(setting, shard),
        model.ffn_hidden_size // shard.tensor_parallel_size,
        model.hidden_size,
    )
    up, inside, passed = (2 if model.gated_mlp else 1) * down, tokens * down * width, hidden_bytes_of(setting, shard)
    of_down, of_up = (casts_of(setting, tokens, *matrix) for matrix in ((hidden, down), (up, hidden)))
    made = setting.weight_gradient_copy_bytes * hidden
    # Where it was not kept, the activation's output is there in the first moment, and the norm's in the second.
    before = np.where(makes_outputs, norm_output_bytes(setting, shard), -inside)
    # The first moment is the way down's weight gradient, the second the gate's, the third the way up's. In the second
    # the activation's output is gone, and there are its gradient, both halves, and the whole that is made of these.
    gated = np.where(makes_outputs, 5, 4) * inside if model.gated_mlp else 0
    first = activated + np.maximum(inside + np.maximum(made * down, of_down.to_weight), of_down.to_input)
    third = before + np.maximum(passed + np.maximum(made * up, of_up.to_weight), of_up.to_input)
    fullest: Integers = np.maximum(np.maximum(first, gated), third)
    if model.experts is None:  # whose rows would be gone by then
        # The norm's backward pass has neither side of the activation nor the norm's own output any more.
        vector = norm_output_bytes(setting, shard)
        sides = np.where(makes_outputs, 0, inside + vector) + (2 if model.gated_mlp else 1) * inside
        fullest = np.maximum(fullest, norm_bytes(setting, vector) - sides)
        if norms_follow(model):  # the one behind the feed-forward network comes first, when all is there
            fullest = np.maximum(fullest, norm_bytes(setting, vector))
    whole = np.where(repeats(setting, shard.recompute, "layer"), np.maximum(passed, of_down.forward), 0)
    return np.maximum(fullest, whole)


FP32_COPIES_OF_RMS_NORM = 3
"""Of its input, the gradient and their product. Source: train_core/model/elementwise.py, `_RMSNorm.backward`."""


def norm_bytes(setting: Setting, held: Integers) -> Integers:
    """Bytes of a norm's backward pass, which an RMSNorm makes in fp32 where it is not one kernel."""
    copies = FP32_COPIES_OF_RMS_NORM * FLOAT32_BYTES // setting.dtype_bytes if setting.model.family == "llama" else 1
    return held * (1 + copies)


WIDE_COPIES = 2
"""Of an operand in fp32 while it is cast operation by operation: as it is and scaled."""


class CastBytes(NamedTuple):
    """Bytes that each of a matrix's three products holds while it is made from operands that it casts, and makes.

    Of a gradient that is added up the sum is not among them.
    """

    forward: Integers | int
    to_input: Integers | int
    to_weight: Integers | int


def casts_of(
    setting: Setting, tokens: Integers, columns: Integers | int, depth: Integers | int, *, pads: bool = False
) -> CastBytes:
    """Of a matrix (columns, depth); none where nothing is cast anew, as results are counted elsewhere then.

    Args:
        pads: the number of tokens may be any, so that a GPU's weight gradient pads both operands.
    """
    implementation, width = setting.implementation, setting.dtype_bytes
    if recipe_of(setting) is None or not implementation.casts_anew:
        return CastBytes(0, 0, 0)
    each = 1 if implementation.is_compiled else WIDE_COPIES * FLOAT32_BYTES

    def held(one: Integers, other: Integers, result: Integers) -> Integers:
        # They are cast one after the other, and then multiplied.
        return np.maximum(np.maximum(each * one, one + each * other), one + other + result)

    # With scales by rows the kernel writes the type of activations, which is widened then.
    narrow = width if setting.matmul_recipe == "fp8-rowwise" and setting.gradient_bytes > width else 0
    x, dy, weight = tokens * depth, tokens * columns, columns * depth + 0 * tokens
    padded = (x + dy) * width if pads and setting.cluster.device.kind == "gpu" else 0
    return CastBytes(
        forward=held(x, weight, dy * width),
        to_input=held(dy, weight, x * width),
        to_weight=held(dy, x, weight * (setting.gradient_bytes + narrow)) + padded,
    )


def rotated_bytes(setting: Setting, shard: Shard) -> Integers | int:
    """Queries and keys from before they were turned by their positions; without a turn, what queries are copied from.

    Values are a view of what the product of all three made, and attention keeps them, so that the whole of it stays.
    Norms of heads keep it too, with one value in fp32 for each head. Queries of which a group has several are copied,
    but where a rank has one group, whose queries stand together.
    """
    model, t, implementation = setting.model, shard.tensor_parallel_size, setting.implementation
    if model.family != "llama":
        if not implementation.counted_moments or model.num_query_groups == model.num_attention_heads:
            return 0
        copied = np.where(model.num_query_groups > t, model.query_size // t, 0)
        return tokens_of(setting, shard) * copied * setting.dtype_bytes
    is_wide = "wide_qk_norm" in model.parts
    if not (implementation.rotated_copies or model.qk_norm or is_wide):
        return 0
    made = (model.query_size + model.key_value_size) // t
    if is_wide:  # one value of all query heads of a token, and of all key heads
        return tokens_of(setting, shard) * (made * setting.dtype_bytes + 2 * FLOAT32_BYTES)
    if model.qk_norm:
        scales = (model.num_attention_heads + model.num_query_groups) // t * FLOAT32_BYTES
        return tokens_of(setting, shard) * (made * setting.dtype_bytes + scales)
    if model.latent_attention is not None:
        # Whole heads are put together anew; values stay a view of what made them and the keys' part without positions.
        rotary = model.num_attention_heads * model.latent_attention.rotary_head_size
        made = (model.key_value_size - rotary) // t
    return tokens_of(setting, shard) * made * setting.dtype_bytes


def selected_bytes(setting: Setting, shard: Shard) -> Integers:
    """Count what torchtitan's selection of operators keeps: attention's output and every second matrix product's.

    Of the seven products of a gated layer (queries, keys, values, attention's output, gate, up, down) these are the
    queries, the values, the gate and the way down, whose output nothing needs in backward, so that compiled layers do
    not keep it. Source: torchtitan, activation checkpointing with `selective` and option `op`.
    """
    model, width, t = setting.model, setting.dtype_bytes, shard.tensor_parallel_size
    heads = model.num_attention_heads // t * setting.implementation.log_sum_exp_bytes
    outputs = (2 * model.query_size + model.key_value_size + model.ffn_hidden_size) // t * width
    layer_input = held_tokens_of(setting, shard) * model.hidden_size * width
    unused = model.hidden_size * width if setting.implementation.keeps_unused_outputs and model.gated_mlp else 0
    return layer_input + tokens_of(setting, shard) * (outputs + heads + unused)


def outputs_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes of outputs of norms and of the activation as a layer keeps them, which may be what they were cast to."""
    share = kept_operand_bytes(setting) / setting.dtype_bytes
    return (_wide_outputs_bytes(setting, shard) * share).astype(np.int64)


def _wide_outputs_bytes(setting: Setting, shard: Shard) -> Integers:
    dropped = 0 if "norms_behind" in setting.model.parts else NUM_NORMS
    return dropped * norm_output_bytes(setting, shard) + activated_bytes(setting, shard)


def kept_operand_bytes(setting: Setting) -> float:
    """Bytes in which a product's operand is kept for backward: narrow ones if the product has them."""
    recipe = recipe_of(setting)
    is_narrow = recipe is not None and setting.implementation.keeps_narrow_inputs
    return recipe.operand_bytes if recipe is not None and is_narrow else float(setting.dtype_bytes)


def kept_difference(setting: Setting, shard: Shard) -> Integers:
    """Bytes that a layer keeps more (or less) for backward than with wide products.

    The attention's output is kept twice: wide for the backward pass of the core, narrow for that of the projection.
    """
    if recipe_of(setting) is None or not setting.implementation.keeps_narrow_inputs:
        return np.asarray(0)
    attended = tokens_of(setting, shard) * setting.model.attended_size * kept_operand_bytes(setting)
    more = (attended / shard.tensor_parallel_size).astype(np.int64)
    return more + outputs_bytes(setting, shard) - _wide_outputs_bytes(setting, shard)
