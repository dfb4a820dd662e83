"""The output projection and its loss: the bytes that the last stage holds beside its layers, and the seconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conf.units import FLOAT32_BYTES
from train_core.costs.layer.layer_costs import LayerCosts
from train_core.costs.layer.shard import Shard, held_tokens_of, hidden_bytes_of, tokens_of
from train_core.costs.primitives.collectives import ring_of
from train_core.costs.primitives.kernels import matmul_seconds, memory_bound_seconds
from train_core.costs.setting import Floats, Integers, Setting


def head_costs(setting: Setting, shard: Shard) -> tuple[Floats, Floats, Floats, Floats]:
    """The output projection and its loss: forward, input gradient and weight gradient seconds, and the
    vocabulary-parallel reductions.

    Source: arXiv 1909.08053, section 3 (only scalars per token are reduced for the loss).
    """
    model, t, tokens = setting.model, shard.tensor_parallel_size, tokens_of(setting, shard)
    h, vocab = model.hidden_size, model.vocab_size // t
    elements = tokens * vocab
    kind = setting.implementation
    forward_passes, backward_passes = kind.loss_passes
    copies = np.where(t > 1, kind.split_loss_copies, kind.loss_copies)
    forward_passes = forward_passes + 2 * np.maximum(copies - 1, 0)  # every further copy is written and read
    loss = memory_bound_seconds(setting, elements * (2 * setting.dtype_bytes + forward_passes * FLOAT32_BYTES), 4)
    gradient = memory_bound_seconds(setting, elements * (setting.dtype_bytes + backward_passes * FLOAT32_BYTES), 2)
    # Of every token: the largest logit, the target's logit, and the sum of exponentials.
    scalars = (3 * tokens * FLOAT32_BYTES).astype(np.float64)
    # Tensor ranks have the gradient of the head's input from their parts of the vocabulary, and add it up.
    hidden = (tokens * h * setting.dtype_bytes).astype(np.float64)
    ring = ring_of(setting, t, np.ones_like(t))
    reduced = ring.all_reduce_seconds(scalars) + ring.all_reduce_seconds(hidden)
    return (
        # A product of (rows, columns, depth): logits; the gradient of their input; the gradient of the weight.
        matmul_seconds(setting, tokens, vocab, h) + loss,
        matmul_seconds(setting, tokens, h, vocab) + gradient,
        matmul_seconds(setting, vocab, h, tokens),
        reduced,
    )


class EndBytes(NamedTuple):
    """The bytes that the last stage holds beside its layers' activations at its fullest moment, in columns, (n,).

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
    """The fullest of three moments: the loss, the head's weight gradient, and the backward pass of the last layer."""
    model, width, tokens = setting.model, setting.dtype_bytes, tokens_of(setting, shard)
    held, hidden = held_tokens_of(setting, shard) * model.hidden_size * width, hidden_bytes_of(setting, shard)
    rows, none = model.vocab_size // shard.tensor_parallel_size, np.zeros_like(tokens)
    made = setting.weight_gradient_copy_bytes * model.hidden_size * rows
    logits, gathered = tokens * rows * _logit_bytes(setting, shard), layer.gathered_bytes
    scattered = np.where(shard.sequence_parallel, held, 0)  # the head's input gradient, on its way
    if not setting.implementation.counted_moments:
        return EndBytes(2 * held, layer.working_bytes, logits, gathered, 2 * held)
    # In order: the loss; the head's weight gradient, which needs the whole gathered input and the logits' gradient; and
    # the last layer's backward pass, beside the gradient of its output.
    moments = (
        EndBytes(2 * held, none, logits, none, held),
        EndBytes(2 * held, hidden + made, tokens * rows * width, gathered, held + scattered),
        EndBytes(none, layer.working_bytes + held, none, gathered, held),
    )
    fullest = np.argmax(np.array([np.sum(np.array(moment), axis=0) for moment in moments]), axis=0)
    return EndBytes(*(np.choose(fullest, columns) for columns in zip(*moments, strict=True)))


def _logit_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes of one logit at the loss: its copies in fp32, and the logit itself, if that is not fp32 and one of them.

    Without copies the gradient is there beside the logits.
    """
    implementation, width = setting.implementation, setting.dtype_bytes
    is_split = shard.tensor_parallel_size > 1
    copies = np.where(is_split, implementation.split_loss_copies, implementation.loss_copies)
    itself = 0 if setting.dtype == "fp32" else width
    return np.where(copies == 0, 2 * width, copies * FLOAT32_BYTES + itself)
