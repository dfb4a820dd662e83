"""The differences between the bytes that a trainer's layer keeps and those of the plain layer."""

from __future__ import annotations

from train_core.costs.layer.shard import Shard, held_tokens_of, tokens_of
from train_core.costs.setting import Integers, Setting


def rotated_bytes(setting: Setting, shard: Shard) -> Integers | int:
    """Queries and keys from before they were turned by their positions.

    Values are a view of what the product of all three made, and attention keeps them, so that the whole of it stays.
    """
    model = setting.model
    if not setting.implementation.rotated_copies or model.family != "llama":
        return 0
    made = (model.query_size + model.key_value_size) // shard.tensor_parallel_size
    if model.latent_attention is not None:
        # Whole heads are put together anew; values stay a view of what made them and the keys' part without positions.
        rotary = model.num_attention_heads * model.latent_attention.rotary_head_size
        made = (model.key_value_size - rotary) // shard.tensor_parallel_size
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
