"""The choices on which one layer's time and memory depend, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conf.types.recompute import RECOMPUTES
from costs.counts.parameters import Matrix, attention_matrices, feed_forward_matrices
from costs.setting import Booleans, Integers, Setting

NONE = RECOMPUTES.index("none")


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


def norm_output_bytes(setting: Setting, shard: Shard) -> Integers:
    return held_tokens_of(setting, shard) * setting.model.hidden_size * setting.dtype_bytes


def activated_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes of the activation's output."""
    features: Integers = setting.model.ffn_hidden_size // shard.tensor_parallel_size
    return tokens_of(setting, shard) * features * setting.dtype_bytes


def products_of(setting: Setting, shard: Shard) -> tuple[tuple[Integers | int, Integers | int], ...]:
    """Columns and depth of the matrix products of a layer on one rank, in their order; each has a row per token."""
    t = shard.tensor_parallel_size
    products: list[tuple[Integers | int, Integers | int]] = []
    for columns, depth, split in matrices_of(setting):
        if split == "columns":
            products.append((columns // t, depth))
        elif split == "rows":
            products.append((columns, depth // t))
        else:  # every rank multiplies all its tokens, of which sequence parallelism leaves it a share
            products.append((np.where(shard.sequence_parallel, columns // t, columns), depth))
    return tuple(products)


def paired_products_of(setting: Setting, shard: Shard) -> list[tuple[Integers | int, Integers | int]]:
    """Select the `products_of` beside which tensor ranks gather and scatter: columns and rows split in turn."""
    splits, products = [matrix.split for matrix in matrices_of(setting)], products_of(setting, shard)
    last = [index for index, split in enumerate(splits) if split == "rows"]
    return [products[index + offset] for index in last for offset in (-1, 0)]


def matrices_of(setting: Setting) -> tuple[Matrix, ...]:
    model = setting.model
    return attention_matrices(model) + feed_forward_matrices(model, model.ffn_hidden_size)


def num_gathered(setting: Setting) -> int:
    """Parts of a layer in front of which sequence parallelism gathers, and after which tensor ranks add up."""
    return 2 if setting.model.ffn_hidden_size else 1


def scores_of(setting: Setting, shard: Shard) -> Integers:
    """Elements of the attention scores on one rank, whose queries meet the keys of the whole sequence."""
    heads = setting.model.num_attention_heads // shard.tensor_parallel_size
    return tokens_of(setting, shard) * heads * setting.model.seq_length
