"""The cost of context parallelism in the attention core: keys and values go round, and the core runs in blocks.

Each rank holds two pieces of a sequence, one from its front and one from its end, so that the causal mask leaves all
ranks the same work. Keys and values of the others pass by in a ring, and every piece of them is a block of the core.
Source: arXiv 2310.01889; TransformerEngine, attention.py, AttnFuncWithCPAndKVP2P.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conf.units import FLOAT32_BYTES
from costs.collectives import ring_of, shown_seconds, transfer_seconds
from costs.kernels import Number, attention_seconds, matmul_seconds, memory_bound_seconds
from costs.layer.shard import (
    Shard,
    activated_bytes,
    hidden_bytes_of,
    norm_output_bytes,
    scores_of,
    tokens_of,
)
from costs.setting import Floats, Integers, Setting, repeats

PASSES = 3  # a sum reads both addends and writes the result
GATHERED_FORWARD_BYTES = 41
"""Bytes that torch's context parallelism moves per block and element of the core's output, on top of the block.

Keys and values are put into one buffer (8); the block's output becomes fp32 (6) and is merged by two differences and a
product, none of them fused (32), of which half of the blocks do half and copy the whole (27 in all: 33 in the mean).
"""
GATHERED_BACKWARD_BYTES = 57
"""The same backward: the buffer again (8), sums of three gradients in fp32 (33 in the mean, copies included), and those
of keys and values in one buffer (16).

Source of both: torch, distributed/tensor/experimental/_attention.py, _templated_ring_attention and its backward.
"""


class CoreSeconds(NamedTuple):
    """The attention core of one layer, in columns, (n,).

    Attributes:
        forward: computation of the forward pass, in all its blocks; `backward` likewise.
        repeated: the part of `forward` that recomputation runs again.
        exchange_forward: what shows of the exchange of keys and values.
        exchange_backward: the same, that of the repeated forward included.
    """

    forward: Floats
    backward: Floats
    repeated: Floats
    exchange_forward: Floats | float
    exchange_backward: Floats | float


def core_seconds(setting: Setting, shard: Shard) -> CoreSeconds:
    is_repeated = repeats(setting, shard.recompute, "core", "layer")
    forward, backward = core_forward(setting, shard), core_backward(setting, shard)
    if not np.any(shard.context_parallel_size > 1):
        return CoreSeconds(forward, backward, np.where(is_repeated, forward, 0.0), 0.0, 0.0)
    more_forward, more_backward = block_seconds(setting, shard)
    forward, backward = forward + more_forward, backward + more_backward
    sent_forward, sent_backward = exchange_seconds(setting, shard, forward, backward)
    repeated = np.where(is_repeated, forward, 0.0)
    sent_backward = sent_backward + np.where(is_repeated, sent_forward, 0.0)
    return CoreSeconds(forward, backward, repeated, sent_forward, sent_backward)


def exchanged_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes of the keys and values that one rank starts from and passes on."""
    return _exchanged_elements(setting, shard) * setting.dtype_bytes


def _exchanged_elements(setting: Setting, shard: Shard) -> Integers:
    """Keys and values of a rank; where they are gathered, those of each group were repeated for its query heads before.

    Source of the latter: torchtitan, models/llama/model.py, `repeat_kv`.
    """
    model = setting.model
    is_ring = setting.implementation.context_ring
    width = model.key_value_size + model.value_size if is_ring else model.query_size + model.attended_size
    return tokens_of(setting, shard) * width // shard.tensor_parallel_size


def buffer_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes of the keys and values of all context ranks, which each of them holds while its core runs."""
    return np.where(shard.context_parallel_size > 1, shard.context_parallel_size * exchanged_bytes(setting, shard), 0)


def core_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes that this trainer's core holds at its fullest moment backward, less what the layer has let go by then.

    All along: gradients of the output, those of queries summed in fp32, this rank's keys and values in one piece, and
    what comes and goes. With the own block, its gradients of queries, keys and values; other blocks leave out half of
    the queries or half of the keys.
    """
    model, c, pairs = setting.model, shard.context_parallel_size, exchanged_bytes(setting, shard)
    tokens, t, width = tokens_of(setting, shard), shard.tensor_parallel_size, setting.dtype_bytes
    queries = tokens * (model.query_size // t) * width
    own_block, other_block = pairs + queries, np.maximum(pairs + queries // 2, pairs // 2 + queries)
    if setting.context_exchange == "gather":
        moment = 2 * c * pairs + own_block  # what was gathered, and its gradients
    else:
        # The sums of this rank's gradients and of those that go round, the pairs at work and those that come. With two
        # ranks the first block is the fullest. From four on it may be the time between two blocks, when what goes round
        # is there twice, on its way out and in.
        with_block = 4 * pairs + other_block
        most = np.maximum(with_block, 6 * pairs)
        moment = np.select([c == 2, c == 3], [3 * pairs + own_block, with_block], most)
    all_along = pairs + tokens * (model.query_size * FLOAT32_BYTES + model.attended_size * width) // t
    return np.where(c > 1, all_along + moment - _let_go_before_core(setting, shard), 0)


def _let_go_before_core(setting: Setting, shard: Shard) -> Integers:
    """Bytes of a layer's activations that are gone when its core runs backward: the feed-forward layer's.

    These are its norm's input and output and both sides of the activation, less what recomputation did not keep.
    """
    vector, side = norm_output_bytes(setting, shard), activated_bytes(setting, shard)
    kept = 2 * vector + (3 if setting.model.gated_mlp else 2) * side
    dropped = np.where(repeats(setting, shard.recompute, "outputs"), vector + side, 0)
    # What sequence parallelism gathered for a product is gone as well, which is counted beside every moment.
    gathered = np.where(shard.sequence_parallel, hidden_bytes_of(setting, shard), 0)
    return kept - dropped + gathered


def block_seconds(setting: Setting, shard: Shard) -> tuple[Floats, Floats]:
    """Seconds, forward and backward, by which blocks take longer than the core in one piece.

    Forward, every block's output is added to those before it; backward, the gradients of queries, and of the keys and
    values that go round. Each is one pass through memory and two launches more.
    """
    c, exchanged = shard.context_parallel_size, exchanged_bytes(setting, shard)
    tokens, t, width = tokens_of(setting, shard), shard.tensor_parallel_size, setting.dtype_bytes
    # Of latent attention they differ in width.
    outputs, queries = tokens * setting.model.attended_size // t, tokens * setting.model.query_size // t
    forward = memory_bound_seconds(setting, PASSES * outputs * width, 2)
    backward = memory_bound_seconds(setting, PASSES * (queries * width + exchanged), 3)
    if not setting.implementation.context_ring:
        forward = memory_bound_seconds(setting, GATHERED_FORWARD_BYTES * outputs, 6)
        backward = memory_bound_seconds(setting, GATHERED_BACKWARD_BYTES * queries, 8)
    return np.where(c > 1, c * forward, 0.0), np.where(c > 1, c * backward, 0.0)


def exchange_seconds(setting: Setting, shard: Shard, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
    """Seconds of the exchange, forward and backward, that the core does not hide.

    A ring sends keys and values to the next rank while the core computes with those at hand; backward their gradients
    go with them. Where keys and values are gathered at once it is beside the first block alone, and their gradients are
    scattered after the last. Trainers without a ring gather, and send gradients round in fp32, each beside the next
    block and the last beside none.

    Args:
        forward, backward: seconds of the core, in all its blocks.
    """
    c = shard.context_parallel_size
    if setting.implementation.context_ring and setting.context_exchange == "ring":
        sent_forward = _beside_ring(setting, shard, forward / c)
        sent_backward = _beside_ring(setting, shard, backward / c, times=2.0)
    else:
        gathered = _gathered_seconds(setting, shard)
        sent_forward, sent_backward = (shown_seconds(setting, gathered, core / c) for core in (forward, backward))
        is_scattered = setting.implementation.context_ring
        added = gathered if is_scattered else _gradients_beside_blocks(setting, shard, backward / c)
        sent_backward = sent_backward + added
    return np.where(c > 1, sent_forward, 0.0), np.where(c > 1, sent_backward, 0.0)


def _beside_ring(setting: Setting, shard: Shard, block: Floats, times: float = 1.0) -> Floats:
    """Seconds that show of `c - 1` hops, each beside one block of the core."""
    hop = _hop_seconds(setting, shard, times * exchanged_bytes(setting, shard))
    return (shard.context_parallel_size - 1) * shown_seconds(setting, hop, block)


def _gradients_beside_blocks(setting: Setting, shard: Shard, block: Floats) -> Floats:
    """Seconds that show of `c` hops of gradients in fp32, each beside one block but the last."""
    hop = _hop_seconds(setting, shard, _exchanged_elements(setting, shard) * float(FLOAT32_BYTES))
    return (shard.context_parallel_size - 1) * shown_seconds(setting, hop, block) + hop


def _hop_seconds(setting: Setting, shard: Shard, num_bytes: Floats) -> Floats:
    # A ring is as slow as its widest hop; a transfer over half of the group's extent is on that tier.
    stride = -(-shard.context_parallel_size * shard.tensor_parallel_size // 2)
    return transfer_seconds(setting, num_bytes, stride)


def _gathered_seconds(setting: Setting, shard: Shard) -> Floats:
    """Seconds of gathering the keys and values of all ranks, or of scattering their gradients."""
    c = shard.context_parallel_size
    return ring_of(setting, c, shard.tensor_parallel_size).gather_seconds(c * (1.0 * exchanged_bytes(setting, shard)))


FLASH_BACKWARD_TO_FORWARD = 2.5  # five products against two; source: arXiv 2205.14135, appendix B


def _causal_flops(setting: Setting, shard: Shard) -> Number:
    """FLOPs of a flash kernel, which computes scores and weighted values of the lower triangle alone, or of windows."""
    model = setting.model
    # A product takes 2 FLOPs for each element of the depth, and the triangle is half of the square: 2 and 1/2 cancel
    # out.
    triangle = scores_of(setting, shard) * (model.query_size + model.attended_size) // model.num_attention_heads
    return triangle if model.seen_share == 1.0 else triangle * model.seen_share


CAP_FORWARD, CAP_BACKWARD = 80, 140
"""Bytes of each score that this trainer reads and writes where it caps scores, operation by operation in fp32. Source:
train_core/model/attention_blocks.py, `_capped_rows`, `_capped_output` and `_capped_gradients`."""


def _cap_seconds(setting: Setting, shard: Shard, bytes_of_score: int) -> Floats | float:
    model = setting.model
    if model.scores_cap is None or not setting.implementation.counted_moments:
        return 0.0
    # Of a causal layer half of the scores, of one with a window all, under a mask.
    share = 1.0 - model.num_full_layers / model.num_layers / 2 if model.narrow_window is not None else 0.5
    return memory_bound_seconds(setting, scores_of(setting, shard) * (share * bytes_of_score))


def core_forward(setting: Setting, shard: Shard) -> Floats:
    if setting.implementation.flash_attention:
        return attention_seconds(setting, _causal_flops(setting, shard)) + _cap_seconds(setting, shard, CAP_FORWARD)
    # Two batched products with a softmax between them. They know nothing of the mask and compute the full square.
    rows, s, count, size = _heads(setting, shard)
    # Softmax reads and writes the scores, and so does dropout, which also writes a mask of a byte for each.
    passes = 2 + (2 if setting.implementation.dropout else 0)
    softmax = scores_of(setting, shard) * (passes * setting.dtype_bytes + int(setting.implementation.dropout))
    products = matmul_seconds(setting, rows, s, size, count) + matmul_seconds(setting, rows, size, s, count)
    return products + memory_bound_seconds(setting, softmax, passes // 2)


def core_backward(setting: Setting, shard: Shard) -> Floats:
    if setting.implementation.flash_attention:
        fused = attention_seconds(setting, FLASH_BACKWARD_TO_FORWARD * _causal_flops(setting, shard))
        return fused + _cap_seconds(setting, shard, CAP_BACKWARD)
    rows, s, count, size = _heads(setting, shard)
    # Softmax reads its output and that output's gradient and writes a gradient. Four products follow: the gradient of
    # the scores, of depth `size`, and those of queries, keys and values, counted with depth `s`.
    passes = 3 + (2 if setting.implementation.dropout else 0)
    softmax = scores_of(setting, shard) * (passes * setting.dtype_bytes + int(setting.implementation.dropout))
    products = matmul_seconds(setting, rows, s, size, count) + 3.0 * matmul_seconds(setting, rows, size, s, count)
    return products + memory_bound_seconds(setting, softmax, 2)


def _heads(setting: Setting, shard: Shard) -> tuple[Integers, int, Integers, int]:
    """A rank's queries of a sequence, the sequence's keys, number of batched products and size of a head."""
    model = setting.model
    heads = model.num_attention_heads // shard.tensor_parallel_size
    rows = model.seq_length // shard.context_parallel_size
    return rows, model.seq_length, shard.micro_batch_size * heads, model.query_size // model.num_attention_heads
