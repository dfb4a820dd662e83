"""In what the bytes that a trainer's layer keeps differ from those of the plain layer."""

from __future__ import annotations

from conf.schema import MatmulRecipe
from train_core.costs.layer.shard import Shard, held_tokens_of, tokens_of
from train_core.costs.setting import Integers, Setting

NARROW_EIGHTHS: dict[MatmulRecipe, int] = {
    "fp8-delayed": 8,
    "fp8-tensorwise": 8,
    "fp8-rowwise": 8,
    "fp8-blockwise": 8,
    "mxfp8": 8,
    "nvfp4": 4,
}
"""Bits of a value that a narrow product takes. Left out: its scales, at most one byte for every 16 values."""


def rotated_bytes(setting: Setting, shard: Shard) -> Integers | int:
    """Queries and keys from before they were turned by their positions.

    Values are a view of what the product of all three made, and attention keeps them, so that the whole of it stays.
    """
    model = setting.model
    if not setting.implementation.rotated_copies or model.family != "llama":
        return 0
    made = (model.query_size + model.key_value_size) // shard.tensor_parallel_size
    return tokens_of(setting, shard) * made * setting.dtype_bytes


def narrow_bytes(setting: Setting, shard: Shard) -> Integers | int:
    """What the inputs of narrow products change: those of three take less, and that of the fourth is one more.

    The outputs of both norms and of the activation are kept for the product after them alone. Attention keeps its own
    output as well, so that the narrow copy of it comes on top. Source: Transformer Engine, module/layernorm_linear.py
    and linear.py, what they save for backward.
    """
    if setting.matmul_recipe is None or not setting.implementation.narrow_inputs:
        return 0
    model, bits = setting.model, NARROW_EIGHTHS[setting.matmul_recipe]
    less = 8 * setting.dtype_bytes - bits
    norms = held_tokens_of(setting, shard) * 2 * model.hidden_size * less
    t = shard.tensor_parallel_size
    split = tokens_of(setting, shard) * (model.query_size // t * bits - model.ffn_hidden_size // t * less)
    return (split - norms) // 8


def selected_bytes(setting: Setting, shard: Shard) -> Integers:
    """What torchtitan's selection of operators keeps: attention's output and every second matrix product's.

    Of the seven products of a gated layer (queries, keys, values, attention's output, gate, up, down) these are the
    queries, the values and the gate. The way down is the next one, whose output nothing needs in backward, so that
    compiled layers do not keep it. Source: torchtitan, activation checkpointing with `selective` and option `op`.
    """
    model, width, t = setting.model, setting.dtype_bytes, shard.tensor_parallel_size
    heads = model.num_attention_heads // t * setting.implementation.log_sum_exp_bytes
    outputs = (2 * model.query_size + model.key_value_size + model.ffn_hidden_size) // t * width
    layer_input = held_tokens_of(setting, shard) * model.hidden_size * width
    return layer_input + tokens_of(setting, shard) * (outputs + heads)
