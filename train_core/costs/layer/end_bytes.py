"""What the last stage holds beside its layers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conf.units import FLOAT32_BYTES
from train_core.costs.layer.layer_costs import LayerCosts
from train_core.costs.layer.shard import Shard, held_tokens_of, hidden_bytes_of, tokens_of
from train_core.costs.setting import Integers, Setting


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
    model, width, tokens = setting.model, setting.dtype_bytes, tokens_of(setting, shard)
    held, hidden = held_tokens_of(setting, shard) * model.hidden_size * width, hidden_bytes_of(setting, shard)
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
