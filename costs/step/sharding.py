"""The bytes that a rank holds under ZeRO-2 and 3, and the seconds of what these do for every micro-batch.

Most of the bytes are those of ZeRO-3 as torch's FSDP2 carries it out.

FSDP2 gathers and scatters layer by layer, for this trainer, torchtitan and plain FSDP (`shards_masters`). There is no
pipeline then (`conf.plan.setup`): the stage is first and last at once, with one micro-batch in flight. Below them stand
what ZeRO-2 holds of gradients, in pipelines too, and how far DeepSpeed gathers ahead.

Tests hold these bytes against rehearsals. A rank keeps nothing of the weights but fp32 shards, which are gathered in
the width of activations: embedding, last norm and head for the whole pass, a layer for its own passes, and the next
layer beside it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conf.units import FLOAT32_BYTES
from costs.collectives import pace_of, shown_seconds
from costs.kernels import gathered_weight_bytes, memory_bound_seconds
from costs.setting import Booleans, Floats, Integers, Plans, Setting, repeats
from costs.shared_rules import MAX_BUCKET_ELEMENTS
from costs.step.priced_stage import PricedStage
from costs.step.replicas import (
    PricedReplicas,
    expert_replicas,
    num_shards,
    share_weights,
    within_group,
)
from costs.work import recompute_by_layer


class Moment(NamedTuple):
    """Bytes held at one moment beside weights and optimizer state, in columns, (n,), named as in `GroupMemory`."""

    gradients_bytes: Integers
    activations_bytes: Integers
    working_bytes: Integers
    logits_bytes: Integers
    communication_bytes: Integers


def is_fully_sharded(stage: PricedStage) -> Booleans:
    """The plans with ZeRO-3 of trainers whose ZeRO-3 is FSDP's; when others hold what is not known."""
    sharded: Booleans = (stage.plans.zero_stage >= 3) & (num_shards(stage.setting, stage.plans) > 1)
    return sharded & stage.setting.implementation.shards_masters


def fullest_moment(stage: PricedStage) -> Moment:
    """The fullest of these moments: the loss, backward passes of layers, that of the embedding, and the last reduction.

    A layer's backward pass is fullest before its activations are gone, or when all its gradients are there. In that of
    the last layer but one, the gradients of the last are still on their way to their shards. Shards of gradients exist
    from the first backward pass of a step on.
    """
    setting, work = stage.setting, stage.work
    end = work.loss.chosen(work.head.total > work.loss.total, work.head)
    width, reduced = setting.dtype_bytes, setting.gradient_bytes
    layer, ends, none = work.layer_parameters, stage.end_parameters, np.zeros_like(work.layer_parameters)
    shard = stage.owned_parameters * FLOAT32_BYTES
    is_rehearsed = setting.implementation.counted_moments
    # What torch's allocator reserves for these shards, it does not give to the next step's logits, whether the shards
    # are there or not. A rehearsal counts tensors alone.
    before = np.where(stage.plans.num_micro_batches > 1, shard, 0) if is_rehearsed else shard
    but_ends = np.maximum(before, shard - ends * FLOAT32_BYTES // num_shards(setting, stage.plans))
    # The gradient of the head waits for the embedding's, because they are reduced together.
    head = work.token_embedding_parameters * width
    # The loss: all layers' activations are kept, and the last layer is still gathered beside embedding, norm and head.
    # The embedding's backward pass: no activations are left; the gradients of the ends are there in the width of
    # activations, and those of the first layer are on their way to their shards. Then what was gathered is let go, and
    # the ends' gradients are there in the width of the reduction as well.
    moments = [
        Moment(
            before,
            stage.of_layers("kept_bytes") + stage.staying_bytes + end.activations,
            end.working if is_rehearsed else none,
            end.logits,
            end.gathered + (ends + layer) * width,
        ),
        Moment(but_ends, none, ends * width + layer * reduced + work.embedding_working, none, ends * width),
        Moment(but_ends, none, ends * (width + reduced), none, none),
    ]
    # The backward pass of the last layer, of the last but one, and of the last that recomputes where only every n-th
    # does: it is at work, and the next one is gathered beside it.
    num_layers, every, plain = stage.group.layers, stage.plans.recompute_every, work.plain_layer
    lasts: list[Integers] = [num_layers, np.maximum(num_layers - 1, 1)]
    kept = [stage.kept_bytes_of(left) + stage.staying_bytes for left in lasts]
    if recompute_by_layer(stage.plans):
        after = (num_layers - 1) % every
        lasts, kept = [*lasts, num_layers - after], [*kept, kept[0] - after * plain.kept_bytes]
    for left, held in zip(lasts, kept, strict=True):
        is_plain = (left - 1) % every > 0
        whole_layers: Integers = np.minimum(left, GATHERED_LAYERS)
        leaving = head + np.where(left < num_layers, layer * reduced, 0)
        whole = work.layer.gathered_bytes + (ends + whole_layers * layer) * width
        at_work = np.where(is_plain, plain.working_bytes, work.layer.working_bytes) + _made_anew(setting, stage.plans)
        at_work = at_work - np.where(left == 1, stage.staying_bytes, 0)  # the first one's input is in what is held
        # First its activations are all there; in the end they are gone, and its gradients and its input's are there.
        moments.append(Moment(before, held, leaving + at_work + work.held_hidden_bytes, none, whole))
        own, made = np.where(is_plain, plain.kept_bytes, work.layer.kept_bytes), layer * width + work.hidden_bytes
        moments.append(Moment(before, held - own, leaving + made, none, whole))
    totals = np.broadcast_arrays(*(sum(moment) for moment in moments))  # a search crosses columns of several shapes
    fullest = np.argmax(totals, axis=0)
    return Moment(*(np.choose(fullest, columns) for columns in zip(*moments, strict=True)))


def _made_anew(setting: Setting, plans: Plans) -> Integers:
    """Bytes of the weight gradient of the way down, where without ZeRO-3 it would be added up at once."""
    # The way down comes first in a backward pass, while most of the layer's activations are still there.
    down: Integers = setting.model.ffn_hidden_size // plans.tensor_parallel_size * setting.model.hidden_size
    return down * (0 if setting.weight_gradient_copy_bytes else setting.dtype_bytes)


GATHERED_LAYERS = 2  # the layer at work and the next one


def gradient_elements(stage: PricedStage) -> tuple[Integers, Integers]:
    """Gradients on a rank at a loss, and in a backward pass: all, or from ZeRO-2 on its share and what is whole.

    This trainer has two whole buckets in a backward pass, one being added to and one being summed, and with experts
    another; the last of them is summed while the next micro-batch goes forward. FSDP adds up whole gradients in a
    pipeline, and scatters them after the last micro-batch. What others hold whole is not known.
    """
    plans, implementation = stage.plans, stage.setting.implementation
    is_passing = (plans.zero_stage == 2) & share_weights(stage.setting, plans)
    kept: Integers = np.where(plans.zero_stage >= 2, stage.owned_parameters, stage.parameters)
    if not np.any(is_passing):
        return kept, kept
    if implementation.counted_moments:
        at_loss = np.where(plans.num_micro_batches > 1, _first_bucket(stage), 0)
        return kept + np.where(is_passing, at_loss, 0), kept + np.where(is_passing, _whole_buckets(stage), 0)
    is_added_up = is_passing & (plans.pipeline_parallel_size > 1) & implementation.shards_masters
    held = kept + np.where(is_added_up, stage.parameters, 0)
    return held, held


def _first_bucket(stage: PricedStage) -> Integers:
    """The bucket that the last gradients of a backward pass are in: the embedding's, or one of a few vectors."""
    embedding = np.maximum(stage.work.token_embedding_parameters, MAX_BUCKET_ELEMENTS)
    return np.where(stage.group.is_first, np.minimum(embedding, stage.parameters - stage.expert_parameters), 0)


def _whole_buckets(stage: PricedStage) -> Integers:
    """Those of two layers; with experts, both of a layer's, beside one of what lies around them."""
    of_layer, of_end, *of_experts = _longest_buckets(stage)
    # Of the two, one can be the bucket of embedding or head.
    whole = of_layer + of_end
    if of_experts:
        whole = np.maximum(whole, sum(of_experts) + of_layer)
    return np.minimum(whole, stage.parameters)


def largest_update(stage: PricedStage) -> Integers:
    """Parameters of the largest bucket that a rank updates at once, or of its share of it."""
    _, of_end, *of_experts = _longest_buckets(stage)
    setting, plans, experts = stage.setting, stage.plans, stage.expert_parameters
    # A table of positions is in a bucket of its own where tensor ranks hold it whole.
    table = stage.work.embedding_parameters - stage.work.token_embedding_parameters
    whole = stage.parameters - experts - np.where(stage.group.is_first & (plans.tensor_parallel_size > 1), table, 0)
    is_shared = plans.zero_stage >= 1
    largest = np.minimum(whole, of_end) // np.where(is_shared, num_shards(setting, plans), 1)
    if of_experts:
        shards = np.where(is_shared, within_group(setting, expert_replicas(setting, plans)), 1)
        largest = np.maximum(largest, np.minimum(experts, of_experts[0]) // shards)
    return largest


def _longest_buckets(stage: PricedStage) -> list[Integers]:
    """Elements of a layer's bucket, of the largest where the ends of the model have more, and of experts' two.

    A bucket is taken to be as long as it may be, or as its only matrix if that is longer.
    """
    model, t, group = stage.setting.model, stage.plans.tensor_parallel_size, stage.group
    columns = max(model.query_size + 2 * model.key_value_size, (2 if model.gated_mlp else 1) * model.ffn_hidden_size)
    of_layer = np.maximum(columns * model.hidden_size // t, MAX_BUCKET_ELEMENTS)
    of_end = np.maximum(model.vocab_size * model.hidden_size // t, of_layer)
    buckets = [of_layer, np.where(group.is_first | group.is_last, of_end, of_layer)]
    if (experts := model.experts) is not None:
        held = experts.num_experts // (stage.plans.expert_parallel_size * stage.setting.expert_tensor_size(t))
        second = held * experts.ffn_hidden_size * model.hidden_size
        first = second * (2 if model.gated_mlp else 1)
        buckets += [np.maximum(each, MAX_BUCKET_ELEMENTS) for each in (first, second)]
    return buckets


def prefetches_layers(stage: PricedStage) -> Booleans | bool:
    """True where ZeRO-3 gathers the next layer while one is at work, and keeps one that backward is about to use.

    DeepSpeed holds no more than `live_parameters`, and lets go of what is used again only after as many others. With
    layers larger than that nothing is gathered ahead. Source: its documentation of stage3_max_live_parameters and
    stage3_max_reuse_distance, both 10^9 unless stated.
    """
    limit = stage.setting.implementation.live_parameters
    return True if limit is None else stage.work.layer_parameters <= limit


def gathered_bytes(stage: PricedStage) -> Integers:
    """Bytes of weights that ZeRO-3 has gathered, and of as many gradients on their way to their shards.

    Two layers; where the trainer limits them, no more than that, or than the largest matrix if it has more.
    """
    setting, limit = stage.setting, stage.setting.implementation.live_parameters
    layers = GATHERED_LAYERS * stage.work.layer_parameters
    if limit is not None:
        model = setting.model
        largest = (2 if model.gated_mlp else 1) * model.ffn_hidden_size * model.hidden_size
        # A matrix is never gathered in parts, so that the largest one bounds the limit from below.
        layers = np.minimum(layers, np.maximum(limit, largest // stage.plans.tensor_parallel_size))
    return layers * (setting.dtype_bytes + setting.gradient_bytes)


class _Unit(NamedTuple):
    """The parameters that are gathered at once, some of them those of experts, and how many times."""

    parameters: Integers
    experts: Integers
    number: Integers


def sharded_seconds(stage: PricedStage, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
    """Seconds that ZeRO-2 and 3 add to the forward pass of a micro-batch, and to its backward pass.

    Stage 3 gathers weights for each pass; 2 and 3 scatter gradients after backward, since no rank keeps them whole.
    Source: arXiv 1910.02054, section 7.

    Args:
        forward, backward: computation of the passes, beside which collectives can run.
    """
    setting, plans = stage.setting, stage.plans
    if not np.any(plans.zero_stage >= 2):
        return np.asarray(0.0), np.asarray(0.0)
    units, is_prefetched = _units(stage), (plans.zero_stage < 3) | prefetches_layers(stage)
    overlap = np.where(is_prefetched, setting.implementation.sharded_overlap, 0.0)
    # A layer that is not gathered ahead is let go of after each pass, of which full recomputation adds one.
    gathers_after_forward = np.where(is_prefetched | ~repeats(setting, plans.recompute, "layer"), 1.0, 2.0)
    before, after = _collectives(stage, stage.replicas, units, gathers_after_forward)
    quick_before, quick_after = _collectives(stage, stage.replicas.quick, units, gathers_after_forward)
    copies_before, copies_after = shard_copy_seconds(setting, plans, stage.parameters)
    host_before, host_after = _host_seconds(stage, gathers_after_forward)
    shown_before = shown_seconds(setting, before, forward, overlap, pace_of(before, quick_before))
    shown_after = shown_seconds(setting, after, backward, overlap, pace_of(after, quick_after))
    return shown_before + copies_before + host_before, shown_after + copies_after + host_after


def _collectives(
    stage: PricedStage, replicas: PricedReplicas, units: list[_Unit], gathers_after_forward: Floats
) -> tuple[Floats, Floats]:
    """Seconds of the collectives beside a forward pass, and beside a backward pass."""
    zero_stage = stage.plans.zero_stage
    # Where layers are gathered ahead, or without full recomputation, the backward pass gathers each once more.
    gathers = _gathers(stage, replicas, units)
    gathered = np.where(zero_stage < 3, 0.0, sum(gathers))
    again = gathers[1:] if stage.setting.implementation.shards_masters else gathers
    gathered_again = np.where(zero_stage < 3, 0.0, sum(again))
    scattered = np.where(zero_stage < 2, 0.0, _scatters(stage, replicas, units))
    return gathered, gathers_after_forward * gathered_again + scattered


def _units(stage: PricedStage) -> list[_Unit]:
    """What is in no layer, which trainers that gather layer by layer keep between the passes, and every layer."""
    work, dense, ends = stage.work, stage.dense_layers, stage.end_parameters
    none = np.zeros_like(ends)
    units = [
        _Unit(ends, none, (ends > 0).astype(np.int64)),
        _Unit(work.layer_parameters, work.expert_parameters, stage.group.layers - dense),
    ]
    return [*units, _Unit(work.dense_layer_parameters, none, dense * np.ones_like(ends))] if np.any(dense) else units


def _gathers(stage: PricedStage, replicas: PricedReplicas, units: list[_Unit]) -> list[Floats]:
    """Seconds in which all units of each kind are gathered once."""
    each, n = gathered_weight_bytes(stage.setting), stage.setting.implementation.gathered_messages
    # A unit goes in n messages of an n-th of it each, so that the latency counts n times.
    gathers = [replicas.gather_seconds(unit.parameters / n, unit.experts / n, each) for unit in units]
    return [n * unit.number * gather for unit, gather in zip(units, gathers, strict=True)]


def _scatters(stage: PricedStage, replicas: PricedReplicas, units: list[_Unit]) -> Floats:
    each, n = stage.setting.reduced_bytes, stage.setting.implementation.scattered_messages
    total: Floats = np.asarray(0.0)
    for unit in units:
        message, experts = unit.parameters / n, unit.experts / n
        scatter = replicas.gather_seconds(message, experts, each)
        scatter = scatter + replicas.across_groups_seconds(message, experts, each)
        total = total + n * unit.number * scatter
    return total


def _host_seconds(stage: PricedStage, gathers_after_forward: Floats) -> tuple[Floats, Floats]:
    """Seconds in which the host lists the parts of all ranks for a collective, before the forward pass and after it.

    Nothing hides them, as the host launches nothing else meanwhile.
    """
    plans, trainer = stage.plans, stage.setting.implementation
    listed = trainer.listed_rank_seconds * num_shards(stage.setting, plans) * stage.group.layers
    gathers = np.where(plans.zero_stage < 3, 0.0, listed * trainer.gathered_messages)
    scatters = np.where(plans.zero_stage < 2, 0.0, listed * trainer.scattered_messages)
    after: Floats = gathers_after_forward * gathers + scatters
    return gathers, after


def shard_copy_seconds(setting: Setting, plans: Plans, parameters: Integers) -> tuple[Floats, Floats]:
    """Seconds of these copies, before the forward pass of a micro-batch and after it.

    What was gathered is copied from the ranks' shards to the parameters, and gradients are copied to one buffer that
    the ranks' shards of all of them lie in, in fp32. Trainers that cut one flat tensor copy nothing. Source: torch,
    fsdp/_fully_shard/_fsdp_collectives.py, `all_gather_copy_out` and `chunk_cat`.
    """
    if not setting.implementation.copies_shards:
        return np.asarray(0.0), np.asarray(0.0)
    # The first copy reads and writes in the width of the wire; the second reads gradients in that of activations and
    # writes fp32.
    out = memory_bound_seconds(setting, parameters * 2 * gathered_weight_bytes(setting))
    together = memory_bound_seconds(setting, parameters * (setting.dtype_bytes + FLOAT32_BYTES))
    has_replicas = plans.num_replicas > 1
    gathered = np.where((plans.zero_stage >= 3) & has_replicas, out, 0.0)
    # ZeRO-3 gathers once more for the backward pass, and copies again.
    return gathered, gathered + np.where((plans.zero_stage >= 2) & has_replicas, together, 0.0)
