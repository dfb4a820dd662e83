"""The work that the stages of many plans share: layer, embedding and head are priced once per shard.

The head is the output projection with its loss; of it the last stage also holds bytes beside its layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from conf.units import FLOAT32_BYTES
from costs.collectives import ring_of
from costs.counts.parameters import (
    dense_layer_parameters,
    embedding_parameters,
    experts_parameters,
    layer_parameters,
    token_embedding_parameters,
)
from costs.kernels import matmul_seconds, memory_bound_seconds
from costs.layer.experts import expert_layer_costs
from costs.layer.layer_bytes import norm_bytes
from costs.layer.layer_costs import LayerCosts, layer_costs
from costs.layer.shard import NONE, Shard, held_tokens_of, hidden_bytes_of, tokens_of
from costs.setting import Booleans, Floats, InColumns, Integers, Plans, Setting


@dataclass(frozen=True, slots=True)
class Work(InColumns):
    """The work and the memory of a rank of each shard, in columns, (n,).

    Attributes:
        layer: one of those with experts, if there are any.
        plain_layer: a layer that recomputes nothing; the same as `layer` where all layers recompute alike.
        dense_layer: one of the first layers, without experts; the same as `layer` where all layers are alike.
        plain_dense_layer: one of those that recomputes nothing.
        layer_parameters: of `layer`, those of its experts included.
        expert_parameters: those of its experts.
        loss: what the last stage holds beside its layers at the loss of a micro-batch.
        head: the same when the head or the final norm runs backward.
        last: the same when the last layer does, as if that were `layer`.
        embedding_working: held by the embedding's backward pass, in which a micro-batch keeps no activations any more.
        head_deferred_bytes: input and output gradient of the head's product, while its weight gradient is to come.
        kept_logits_bytes: what the loss of one micro-batch keeps until its backward pass.
        hidden_bytes: the whole activation that passes from layer to layer.
        held_hidden_bytes: the part of it that one rank holds.
    """

    layer: LayerCosts
    plain_layer: LayerCosts
    dense_layer: LayerCosts
    plain_dense_layer: LayerCosts
    layer_parameters: Integers
    dense_layer_parameters: Integers
    expert_parameters: Integers
    embedding_parameters: Integers
    token_embedding_parameters: Integers
    head_forward_seconds: Floats
    head_input_gradient_seconds: Floats
    head_weight_gradient_seconds: Floats
    head_tensor_seconds: Floats
    embedding_seconds: Floats
    loss: EndBytes
    head: EndBytes
    last: EndBytes
    embedding_working: Integers
    head_deferred_bytes: Integers
    kept_logits_bytes: Integers
    hidden_bytes: Integers
    held_hidden_bytes: Integers


def work_of(setting: Setting, plans: Plans) -> Work:
    """Return the work of each plan's ranks. Plans with the same shard share one computation."""
    shards, index = _distinct(plans)
    return shard_work(setting, shards, some_layers_are_plain=recompute_by_layer(plans)).rows(index)


def _distinct(plans: Plans) -> tuple[Shard, Integers]:
    """The different shards among the plans, and for each plan the index of its own."""
    # The choices are packed into one integer, since `np.unique` is much faster on integers than on rows. Each factor is
    # above every value of the choice that is added, so that no two shards have the same key; and every field of `Shard`
    # is in it, as plans of different work would else get one price.
    keys: Integers = np.zeros((), dtype=np.int64)
    for column in (getattr(plans, name) for name in Shard.__slots__):
        keys = keys * (int(column.max()) + 1) + column
    _, first, index = np.unique(keys, return_index=True, return_inverse=True)
    shard = Shard(*(np.broadcast_to(getattr(plans, name), keys.shape).ravel()[first] for name in Shard.__slots__))
    return shard, index.reshape(keys.shape)


def shard_work(setting: Setting, shard: Shard, *, some_layers_are_plain: bool = False) -> Work:
    """Return the work of a rank of each shard.

    Args:
        some_layers_are_plain: layers that recompute nothing are priced, too.
    """
    model, t = setting.model, shard.tensor_parallel_size
    hidden = hidden_bytes_of(setting, shard)
    # Sequence parallelism shares out what passes between layers; without it every tensor rank has the whole.
    held = np.where(shard.sequence_parallel, hidden // t, hidden)
    # Tensor ranks share out the vocabulary, so that each has the logits of all tokens for its part of it.
    num_logits = tokens_of(setting, shard) * (model.vocab_size // t)
    costs_of_layer = layer_costs if model.experts is None else expert_layer_costs
    layer = plain = _placed(setting, costs_of_layer(setting, shard))
    has_dense = bool(model.num_dense_layers and model.experts)
    dense = plain_dense = _placed(setting, layer_costs(setting, shard)) if has_dense else layer
    if some_layers_are_plain:
        without = replace(shard, recompute=np.full_like(shard.recompute, NONE))
        plain = _placed(setting, costs_of_layer(setting, without))
        plain_dense = _placed(setting, layer_costs(setting, without)) if has_dense else plain
    experts = np.zeros_like(t)
    if model.experts is not None:
        experts = experts_parameters(model, shard.expert_parallel_size, setting.expert_tensor_size(t))
    forward, input_gradient, weight_gradient, reduced = head_costs(setting, shard)
    loss, head, last = end_bytes(setting, shard, layer)
    return Work(
        layer=layer,
        plain_layer=plain,
        dense_layer=dense,
        plain_dense_layer=plain_dense,
        layer_parameters=layer_parameters(model, t) + experts,
        dense_layer_parameters=dense_layer_parameters(model, t),
        expert_parameters=experts,
        embedding_parameters=embedding_parameters(model, t),
        token_embedding_parameters=token_embedding_parameters(model, t),
        head_forward_seconds=forward,
        head_input_gradient_seconds=input_gradient,
        head_weight_gradient_seconds=weight_gradient,
        head_tensor_seconds=reduced,
        embedding_seconds=memory_bound_seconds(setting, 3 * hidden, 2),
        loss=loss,
        head=head,
        last=last,
        embedding_working=_embedding_working(setting, shard),
        head_deferred_bytes=held + num_logits * setting.dtype_bytes,
        kept_logits_bytes=num_logits * FLOAT32_BYTES,
        hidden_bytes=hidden,
        held_hidden_bytes=held,
    )


def _placed(setting: Setting, layer: LayerCosts) -> LayerCosts:
    """The layer, with what it keeps in the host's memory where activations are offloaded.

    Then it is on the device while the layer runs alone. Nothing hides the copies, on the stream that computes.
    """
    if not setting.offload_activations:
        return layer
    seconds = layer.kept_bytes / setting.cluster.host_bytes_per_second
    return replace(
        layer,
        forward_seconds=layer.forward_seconds + seconds,
        input_gradient_seconds=layer.input_gradient_seconds + seconds,
        waiting_seconds=layer.waiting_seconds + 2 * seconds,
        kept_bytes=np.zeros_like(layer.kept_bytes),
        deferred_bytes=layer.deferred_bytes + layer.kept_bytes,
        working_bytes=layer.working_bytes + layer.kept_bytes,
    )


def recompute_by_layer(plans: Plans) -> bool:
    """True if in some plan not all layers of a stage recompute alike."""
    return bool(np.any(plans.recompute_every > 1))


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
        matmul_seconds(setting, vocab, h, tokens, added_bytes=2 * setting.gradient_bytes),
        reduced,
    )


@dataclass(frozen=True, slots=True)
class EndBytes(InColumns):
    """The bytes that the last stage holds beside its layers' activations at one of its moments, in columns, (n,).

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

    @property
    def total(self) -> Integers:
        return self.activations + self.working + self.logits + self.gathered + self.received

    def chosen(self, is_other: Booleans, other: EndBytes) -> EndBytes:
        """The other moment for some plans."""
        if not np.any(is_other):
            return self
        return EndBytes(
            *(np.where(is_other, *columns) for columns in zip(other.columns(), self.columns(), strict=True))
        )


def end_bytes(setting: Setting, shard: Shard, layer: LayerCosts) -> tuple[EndBytes, EndBytes, EndBytes]:
    """The loss, the fuller of the head's weight gradient and the final norm's backward, and the last layer's backward.

    Of trainers whose moments are not counted, each is all of them together.
    """
    model, width, tokens = setting.model, setting.dtype_bytes, tokens_of(setting, shard)
    held, hidden = held_tokens_of(setting, shard) * model.hidden_size * width, hidden_bytes_of(setting, shard)
    rows, none = model.vocab_size // shard.tensor_parallel_size, np.zeros_like(tokens)
    made = setting.weight_gradient_copy_bytes * model.hidden_size * rows
    logits, gathered = tokens * rows * _logit_bytes(setting, shard), layer.gathered_bytes
    scattered = np.where(shard.sequence_parallel, held, 0)  # the head's input gradient, on its way
    if not setting.implementation.counted_moments:
        together = EndBytes(2 * held, layer.working_bytes, logits, gathered, 2 * held)
        return together, together, together
    # The head's weight gradient needs the whole gathered input and the logits' gradient; the final norm its own input
    # and the gradient of its output; in the last layer's backward pass there is the gradient of its output.
    head = EndBytes(2 * held, hidden + made, tokens * rows * width, gathered, held + scattered)
    norm = EndBytes(held, norm_bytes(setting, held), none, none, held)
    last = EndBytes(none, layer.working_bytes + held, none, gathered, held)
    return EndBytes(2 * held, none, logits, none, held), head.chosen(norm.total > head.total, norm), last


def _embedding_working(setting: Setting, shard: Shard) -> Integers:
    """Bytes of gradients of vectors: as they came, and in fp32, in which a row's are added up for a narrow table.

    Source: train_core/parallel/narrow.py, `add_to_rows`.
    """
    came = held_tokens_of(setting, shard) * setting.dtype_bytes
    sums = FLOAT32_BYTES + setting.gradient_bytes if setting.gradient_bytes < FLOAT32_BYTES else 0
    is_copied = (setting.dtype_bytes < FLOAT32_BYTES) | (shard.tensor_parallel_size > 1)  # masked ones of other ranks
    each = FLOAT32_BYTES * is_copied + sums
    return (came + tokens_of(setting, shard) * each) * setting.model.hidden_size


def _logit_bytes(setting: Setting, shard: Shard) -> Integers:
    """Bytes of one logit at the loss: its copies in fp32, and the logit itself, if that is not fp32 and one of them.

    Without copies the gradient is there beside the logits.
    """
    implementation, width = setting.implementation, setting.dtype_bytes
    is_split = shard.tensor_parallel_size > 1
    copies = np.where(is_split, implementation.split_loss_copies, implementation.loss_copies)
    itself = 0 if setting.dtype == "fp32" else width
    return np.where(copies == 0, 2 * width, copies * FLOAT32_BYTES + itself)
