"""The choices on which one layer's time and memory depend, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conf.knobs import RECOMPUTES
from train_core.costs.setting import Booleans, Integers, Setting

NONE, SELECTIVE, FULL, POINTWISE = (RECOMPUTES.index(name) for name in ("none", "selective", "full", "pointwise"))


@dataclass(frozen=True, slots=True)
class Shard:
    """The choices that a layer's cost depends on, in columns, (n,)."""

    tensor_parallel_size: Integers
    micro_batch_size: Integers
    sequence_parallel: Booleans
    recompute: Integers
    context_parallel_size: Integers
    expert_parallel_size: Integers


def tokens_of(setting: Setting, shard: Shard) -> Integers:
    """Tokens of a rank's micro-batch: context ranks share out every sequence."""
    return shard.micro_batch_size * setting.model.seq_length // shard.context_parallel_size


def held_tokens_of(setting: Setting, shard: Shard) -> Integers:
    """Tokens of the parts between matrix products: a share of each sequence under sequence parallelism."""
    tokens = tokens_of(setting, shard)
    return np.where(shard.sequence_parallel, tokens // shard.tensor_parallel_size, tokens)


def hidden_bytes_of(setting: Setting, shard: Shard) -> Integers:
    """Bytes of a whole activation between layers."""
    return tokens_of(setting, shard) * setting.model.hidden_size * setting.dtype_bytes


def products_of(setting: Setting, shard: Shard) -> tuple[tuple[Integers | int, Integers | int], ...]:
    """Columns and depth of the four matrix products of a layer on one rank; each has a row per token."""
    model, t = setting.model, shard.tensor_parallel_size
    h, f = model.hidden_size, model.ffn_hidden_size // t
    q, kv = model.query_size // t, model.key_value_size // t
    return ((q + 2 * kv, h), (h, q), ((2 if model.gated_mlp else 1) * f, h), (h, f))


def scores_of(setting: Setting, shard: Shard) -> Integers:
    """Elements of the attention scores on one rank, whose queries meet the keys of the whole sequence."""
    heads = setting.model.num_attention_heads // shard.tensor_parallel_size
    return tokens_of(setting, shard) * heads * setting.model.seq_length
