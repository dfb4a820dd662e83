"""Seconds of the output projection and of its loss."""

from __future__ import annotations

import numpy as np

from conf.units import FLOAT32_BYTES
from train_core.costs.layer.shard import Shard, tokens_of
from train_core.costs.primitives.collectives import all_reduce_seconds
from train_core.costs.primitives.kernels import matmul_seconds, memory_bound_seconds
from train_core.costs.setting import Floats, Setting


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
    reduced = all_reduce_seconds(setting, scalars, t, np.ones_like(t)) + all_reduce_seconds(
        setting, hidden, t, np.ones_like(t)
    )
    return (
        # A product of (rows, columns, depth): logits; the gradient of their input; the gradient of the weight.
        matmul_seconds(setting, tokens, vocab, h) + loss,
        matmul_seconds(setting, tokens, h, vocab) + gradient,
        matmul_seconds(setting, vocab, h, tokens),
        reduced,
    )
