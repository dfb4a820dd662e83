"""The bytes that a rank of this trainer holds under ZeRO-3, which torch's FSDP2 carries out layer by layer.

Tests hold these bytes against rehearsals. A rank keeps nothing of the weights but fp32 shards, which are gathered in
the width of activations: embedding, last norm and head for the whole pass, a layer for its own passes, and the next
layer beside it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conf.units import FLOAT32_BYTES
from train_core.costs.setting import Booleans, Integers, Plans, Setting
from train_core.costs.step.priced_stage import PricedStage
from train_core.costs.step.sharing import num_shards


class Moment(NamedTuple):
    """Bytes held at one moment beside weights and optimizer state, in columns, (n,), named as in `GroupMemory`."""

    gradients_bytes: Integers
    activations_bytes: Integers
    working_bytes: Integers
    logits_bytes: Integers
    communication_bytes: Integers


def is_fully_sharded(stage: PricedStage) -> Booleans:
    """The plans that this trainer runs with ZeRO-3. Other trainers are left out: when they hold what is not known."""
    sharded: Booleans = (stage.plans.zero_stage >= 3) & (num_shards(stage.setting, stage.plans) > 1)
    return sharded & stage.setting.implementation.shards_masters


def fullest_moment(stage: PricedStage) -> Moment:
    """The fullest of these moments: the loss, the backward passes of the last two layers, and that of the embedding.

    A layer's backward pass is fullest before its activations are gone, or when all its gradients are there. In that of
    the last layer but one, the gradients of the last are still on their way to their shards. Shards of gradients exist
    from the first backward pass of a step on.
    """
    setting, work = stage.setting, stage.work
    width, reduced = setting.dtype_bytes, setting.gradient_bytes
    layer, ends, kept_by_all = work.layer_parameters, stage.end_parameters, stage.of_layers("kept_bytes")
    kept, gathered, none = work.layer.kept_bytes, work.layer.gathered_bytes, np.zeros_like(layer)
    shard = stage.owned_parameters * FLOAT32_BYTES
    is_rehearsed = setting.implementation.counted_moments
    # What torch's allocator reserves for these shards, it does not give to the next step's logits, whether the shards
    # are there or not. A rehearsal counts tensors alone.
    before = np.where(stage.plans.num_micro_batches > 1, shard, 0) if is_rehearsed else shard
    # The gradient of the head waits for the embedding's, because they are reduced together.
    head = work.token_embedding_parameters * width
    at_work = work.layer.working_bytes + work.held_hidden_bytes + _made_anew(setting, stage.plans)
    moments = [
        Moment(
            before,
            kept_by_all + work.end.activations,
            work.end.working if is_rehearsed else none,
            work.end.logits,
            work.end.gathered + (ends + layer) * width,
        ),
        Moment(shard, none, ends * (width + reduced) + layer * reduced, none, ends * width),
    ]
    for done in (0, 1):
        held, leaving = kept_by_all - done * kept, head + done * layer * reduced
        whole = gathered + (ends + 2 * layer) * width
        made = layer * width + work.hidden_bytes
        moments.append(Moment(before, held, leaving + at_work, none, whole))
        moments.append(Moment(before, held - kept, leaving + made, none, whole))
    totals = np.broadcast_arrays(*(sum(moment) for moment in moments))  # a search crosses columns of several shapes
    fullest = np.argmax(totals, axis=0)
    return Moment(*(np.choose(fullest, columns) for columns in zip(*moments, strict=True)))


def _made_anew(setting: Setting, plans: Plans) -> Integers:
    """Bytes of the weight gradient of the way down, where without ZeRO-3 it would be added up at once."""
    down: Integers = setting.model.ffn_hidden_size // plans.tensor_parallel_size * setting.model.hidden_size
    return down * (0 if setting.weight_gradient_copy_bytes else setting.dtype_bytes)
