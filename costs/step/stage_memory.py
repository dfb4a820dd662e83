"""Memory of one rank of each pipeline stage, at the peak of a step.

State (weights, gradients, optimizer) is there all the time. The peak is one moment of the step, where most activations
are kept beside it: a stage has done every forward pass that comes before its first backward pass, and is at work on the
latter. The last stage's other moments are in `work.end_bytes` and `_earlier_chunk`, the update is in `_with_update`.

Of p stages with m micro-batches of v chunks, stage r (from 0) has in flight, all of them m v at most,

    GPipe m      1F1B p - r      interleaved 2 (p - r - 1) + (v - 1) G + 1      ZB-H1 p

where G is the largest group of micro-batches (`schedule.largest_group`).

    activations = chunks in flight x (what the layers of a chunk keep + the chunk's output, where a trainer keeps it)
                + on the others, of this trainer: the output that is being sent
                + on the last stage: inputs of the final norm and the head, and losses that wait for backward passes
                + under interleaving: what chunks with a layer more keep
                + under ZB-H1: inputs and output gradients of the weight gradients that are put off
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conf.units import FLOAT32_BYTES
from costs.layer.layer_bytes import norm_bytes
from costs.layer.layer_costs import LayerCosts
from costs.setting import Booleans, Integers, Plans, by_distinct
from costs.step.in_flight import chunks_in_flight, heavier_in_flight, losses_of_smaller_groups
from costs.step.muon import is_muons, owned_hidden, update_bytes_at_once
from costs.step.priced_stage import PricedStage
from costs.step.replicas import num_shards
from costs.step.schedule import GPIPE, INTERLEAVED, ZERO_BUBBLE, largest_group
from costs.step.sharding import (
    fullest_moment,
    gathered_bytes,
    gradient_elements,
    is_fully_sharded,
    largest_update,
)
from costs.terms import GroupMemory
from costs.work import EndBytes, recompute_by_layer

ADAM_STATES = 2


def group_memory(stage: PricedStage) -> GroupMemory:
    """Bytes on one rank of the fullest stage of a group of equal stages."""
    setting, is_last = stage.setting, stage.group.is_last
    copies = (ADAM_STATES + (setting.dtype != "fp32")) * FLOAT32_BYTES  # fp32 weights need no master copy
    if setting.offload_optimizer:
        copies = 0  # the host holds them all
    fullest, activations, at_work = _activations(stage)
    of_layers = _of_layers_at_work(stage)
    end, gradients, at_work = _end(stage, at_work, of_layers)
    activations = activations + at_work + np.where(is_last, end.activations, 0)
    gaps: Integers = np.asarray(0)
    if setting.cluster.fragmentation > 0:
        # Gaps come from activations alone, since state is allocated once and stays.
        gaps = (activations * setting.cluster.fragmentation).astype(np.int64)
    memory = GroupMemory(
        stage=fullest,
        parameters=stage.parameters,
        weights_bytes=_held_from(stage, zero_stage=3) * setting.dtype_bytes,
        gradients_bytes=gradients * setting.gradient_bytes,
        optimizer_bytes=_held_from(stage, zero_stage=1) * copies,
        activations_bytes=activations,
        working_bytes=_working_bytes(stage, end, of_layers),
        logits_bytes=_logits_bytes(stage, end),
        communication_bytes=_communication_bytes(stage, end),
        reserved_bytes=setting.cluster.reserved_memory_bytes + gaps,
    )
    if not setting.offload_optimizer:
        memory = _with_update(stage, memory)
    is_sharded = is_fully_sharded(stage)
    memory = _fully_sharded(stage, memory, is_sharded) if np.any(is_sharded) else memory
    if is_muons(stage):  # one state for each element of a matrix, and not two
        memory = replace(memory, optimizer_bytes=memory.optimizer_bytes - owned_hidden(stage) * FLOAT32_BYTES)
    return memory


def _end(stage: PricedStage, at_work: Integers, of_layers: Integers) -> tuple[EndBytes, Integers, Integers]:
    """What the last stage holds beside its layers at its fuller moment, with the gradients and deferred bytes of then.

    At the loss the micro-batch at work has put nothing off, and ZeRO-2 has no bucket but the one that is summed.

    Args:
        of_layers: as `_of_layers_at_work` gives them.
    """
    at_loss, in_backward = gradient_elements(stage)
    loss, last, width = stage.work.loss, stage.work.last, stage.setting.gradient_bytes
    if not np.any(stage.group.is_last):
        return loss, in_backward, at_work
    last = replace(last, working=last.working - stage.work.layer.working_bytes + of_layers)
    end = stage.work.head.chosen(last.total > stage.work.head.total, last)
    is_cut = stage.plans.virtual_pipeline_size > 1
    if stage.setting.implementation.counted_moments and np.any(is_cut):
        earlier = _earlier_chunk(stage)
        end = end.chosen(is_cut & (earlier.total > end.total), earlier)
    is_later = end.total + in_backward * width + at_work > loss.total + at_loss * width
    is_later = is_later | ~stage.group.is_last
    return loss.chosen(is_later, end), np.where(is_later, in_backward, at_loss), is_later * at_work


def _earlier_chunk(stage: PricedStage) -> EndBytes:
    """What a last stage holds beside its layers when an earlier of its chunks runs backward.

    As many are in flight then as at a loss, of which more may be the heavier ones; but where all micro-batches are one
    group, all passes of the last chunk are over.
    """
    plans, work, inner = stage.plans, stage.work, np.zeros_like(stage.group.is_last)
    num, group = plans.num_micro_batches, largest_group(plans.num_micro_batches, plans.pipeline_parallel_size)
    at_loss = chunks_in_flight(plans, stage.group.start)
    then = np.minimum(at_loss, num * plans.virtual_pipeline_size - group)
    each = stage.of_layers("kept_bytes") // plans.virtual_pipeline_size + stage.staying_bytes
    heavier = _excess_in_heavier_chunks(stage.of(replace(stage.group, is_last=inner)), then)
    more = (then - at_loss) * each + heavier - _excess_in_heavier_chunks(stage, at_loss)
    none, received = np.zeros_like(num), 2 * work.held_hidden_bytes
    return EndBytes(more, _of_layers_at_work(stage), none, work.layer.gathered_bytes, received)


def _working_bytes(stage: PricedStage, end: EndBytes, of_layers: Integers) -> Integers:
    """Bytes of gradients and what is made again: of a layer's backward pass, the loss, or the embedding's backward."""
    work, is_last = stage.work, stage.group.is_last
    working = np.where(is_last, end.working + _being_sent_bytes(stage), of_layers)
    if not (stage.setting.implementation.counted_moments and np.any(stage.group.is_first)):
        return working
    # In the latter a micro-batch keeps nothing of its layers, and nothing of the loss.
    gone = stage.of_layers("kept_bytes") // stage.plans.virtual_pipeline_size + stage.staying_bytes
    gone = gone + np.where(is_last, end.activations + end.logits + end.gathered - work.layer.gathered_bytes, 0)
    return np.where(stage.group.is_first, np.maximum(working, work.embedding_working - gone), working)


def _of_layers_at_work(stage: PricedStage) -> Integers:
    """What a layer's backward pass holds at the fullest moment, less what is gone since the backward pass began."""
    work, dense = stage.work, np.asarray(stage.dense_layers)
    of_layer = _of_layer_at_work(stage, work.layer, work.plain_layer)
    if stage.setting.offload_activations:  # a chunk's only layer has its input there already
        is_alone = stage.group.layers <= stage.plans.virtual_pipeline_size
        of_layer = of_layer - np.where(is_alone, stage.staying_bytes, 0)
    if not (stage.setting.implementation.counted_moments and np.any(dense)):
        return of_layer
    # Layers with experts follow those without, and have given back what they kept when it comes to the latter.
    each = stage.group.layers // stage.plans.virtual_pipeline_size
    behind: Integers = stage.kept_bytes_of(np.maximum(each, dense)) - stage.kept_bytes_of(dense)
    of_dense = _of_layer_at_work(stage, work.dense_layer, work.plain_dense_layer) - behind
    of_layer = np.where(dense == stage.group.layers, of_dense, of_layer)
    return np.where(dense > 0, np.maximum(of_dense, of_layer), of_layer)


def _of_layer_at_work(stage: PricedStage, layer: LayerCosts, plain: LayerCosts) -> Integers:
    """The same where all layers are of one kind, of which only every n-th may recompute.

    Then the backward pass begins with layers that keep all, which are gone when it comes to one that makes all again.
    """
    plans, layers = stage.plans, stage.group.layers
    if not (stage.setting.implementation.counted_moments and recompute_by_layer(plans)):
        return layer.working_bytes
    each, heavier = layers // plans.virtual_pipeline_size, layers % plans.virtual_pipeline_size

    def layers_after(fewer: Plans) -> Integers:
        after = np.maximum(each - 1, 0) % fewer.recompute_every
        # Of uneven chunks either may be at work when most are in flight.
        after = np.where(heavier > 0, np.minimum(after, each % fewer.recompute_every), after)
        # Where weight gradients are put off, what these take in place of that is counted with them.
        return np.where(fewer.schedule == ZERO_BUBBLE, 0, after)

    less = np.maximum(layer.working_bytes - plain.working_bytes, 0)
    return layer.working_bytes - np.minimum(
        by_distinct(plans, "recompute_every", layers_after) * plain.kept_bytes, less
    )


def _with_update(stage: PricedStage, memory: GroupMemory) -> GroupMemory:
    """Return `memory` at the update instead, where that makes more than passes hold beside all states."""
    setting = stage.setting
    made = _held_from(stage, zero_stage=1) * setting.implementation.update_working_bytes
    if setting.implementation.counted_moments and setting.gradient_bytes < FLOAT32_BYTES:
        made = FLOAT32_BYTES * largest_update(stage)  # this trainer's kernel takes gradients in fp32
    if is_muons(stage):
        made = made + update_bytes_at_once(stage)
    if not np.any(made):
        return memory
    passing = memory.activations_bytes + memory.logits_bytes + memory.communication_bytes
    passing = passing + memory.gradients_bytes - _held_from(stage, zero_stage=2) * setting.gradient_bytes
    return replace(memory, working_bytes=np.maximum(memory.working_bytes, made - passing))


def _held_from(stage: PricedStage, *, zero_stage: int) -> Integers:
    """Parameters of which a rank keeps something: all of its stage's, or its share from this stage of ZeRO on."""
    return np.where(stage.plans.zero_stage >= zero_stage, stage.owned_parameters, stage.parameters)


def _fully_sharded(stage: PricedStage, memory: GroupMemory, is_sharded: Booleans) -> GroupMemory:
    """Return `memory`, with what FSDP2 holds in the plans that it carries out."""
    masters = stage.owned_parameters * FLOAT32_BYTES
    states = np.zeros_like(masters) if stage.setting.offload_optimizer else ADAM_STATES * masters
    held = fullest_moment(stage)._asdict() | {"weights_bytes": masters, "optimizer_bytes": states}
    return replace(
        memory, **{name: np.where(is_sharded, column, getattr(memory, name)) for name, column in held.items()}
    )


def _logits_bytes(stage: PricedStage, end: EndBytes) -> Integers:
    if not np.any(stage.group.is_last):
        return np.asarray(0)
    # The loss at work has its logits in several copies, each waiting one in a single fp32 copy.
    of_all = end.logits + _waiting_losses(stage.plans) * stage.work.kept_logits_bytes
    return np.where(stage.group.is_last, of_all, 0)


def _waiting_losses(plans: Plans) -> Integers:
    """Micro-batches whose loss the last stage has computed while another one's backward pass begins.

    Every schedule but GPipe follows a forward pass there with its backward pass, and interleaving too where all groups
    of micro-batches are as large.
    """
    waiting: Integers = np.where(plans.schedule == GPIPE, plans.num_micro_batches - 1, 0)
    if np.any(plans.schedule == INTERLEAVED):
        smaller = by_distinct(plans, "num_micro_batches", losses_of_smaller_groups)
        waiting = waiting + np.where(plans.schedule == INTERLEAVED, smaller, 0)
    return waiting


def _activations(stage: PricedStage) -> tuple[Integers, Integers, Integers]:
    """Index of a group's fullest stage, the bytes of its activations, and those that its micro-batch at work puts off.

    The module's docstring has the sum; what the last stage holds around a loss is not in it.

    The earlier a stage, the more it has in flight, so that the fullest is the first, unless weight gradients wait.
    """
    plans, group = stage.plans, stage.group
    # Of a chunk of average length: which of the uneven ones are in flight is added by `_excess_in_heavier_chunks`.
    layers, output = stage.of_layers("kept_bytes") // plans.virtual_pipeline_size, _kept_at_ends(stage)
    in_flight = by_distinct(plans, "num_micro_batches", lambda fewer: chunks_in_flight(fewer, group.start))
    held: Integers = in_flight * (layers + output) + _output_being_sent(stage)
    # The terms below are looked at first, because a search computes millions of these sums.
    if np.any(plans.virtual_pipeline_size > 1):
        held = held + _outputs_of_earlier_chunks(stage, in_flight)
    if np.any(group.is_last):
        held = held + _inputs_of_the_head(stage)
    if np.any(group.layers % plans.virtual_pipeline_size):
        held = held + _excess_in_heavier_chunks(stage, in_flight)
    if not np.any(plans.schedule == ZERO_BUBBLE):
        return group.start, held, np.asarray(0)
    fullest, deferred, at_work = _deferred_weight_gradients(stage, output)
    return fullest, held + deferred, at_work


def _output_being_sent(stage: PricedStage) -> Integers:
    """Bytes of the output that was sent last, which this trainer keeps until it sends something again."""
    if not _lets_outputs_go(stage):
        return np.asarray(0)
    return np.where(_ends_whole(stage), 0, stage.work.held_hidden_bytes)


def _lets_outputs_go(stage: PricedStage) -> bool:
    """Whether outputs live until the next send; of other trainers without outputs nothing is known to be kept."""
    implementation = stage.setting.implementation
    return implementation.kept_outputs == "none" and implementation.counted_moments


def _ends_whole(stage: PricedStage) -> Booleans:
    """Whether a stage sends no output: the last one, where it is one chunk."""
    return np.asarray(stage.group.is_last & (stage.plans.virtual_pipeline_size == 1))


def _outputs_of_earlier_chunks(stage: PricedStage, in_flight: Integers) -> Integers:
    """Count the outputs of the last stage's chunks: the last chunk has none, as its backward pass follows at once."""
    is_cut = stage.group.is_last & (stage.plans.virtual_pipeline_size > 1)
    return np.where(is_cut, in_flight - 1, 0) * _output_bytes(stage)


def _inputs_of_the_head(stage: PricedStage) -> Integers:
    """Inputs of the final norm and the head, which wait with each loss on the last stage."""
    waiting = _waiting_losses(stage.plans) * 2 * stage.work.held_hidden_bytes
    return np.where(stage.group.is_last, waiting, 0)


def _excess_in_heavier_chunks(stage: PricedStage, in_flight: Integers) -> Integers:
    """Bytes that chunks in flight keep at the fullest moment beyond chunks of average length, which may be fewer."""
    plans, group, chunks = stage.plans, stage.group, stage.plans.virtual_pipeline_size
    each, heavier = group.layers // chunks, group.layers % chunks
    most = by_distinct(
        plans,
        "num_micro_batches",
        lambda fewer: heavier_in_flight(fewer, group, heavier, chunks_in_flight(fewer, group.start)),
    )
    light = stage.kept_bytes_of(each)
    more = stage.kept_bytes_of(each + 1) - light
    # Layers are taken to be alike here; what those without experts keep less is in the average that is counted already.
    average = (chunks * light + heavier * more) // chunks
    return np.where(heavier > 0, in_flight * light + most * more - in_flight * average, 0)


def _deferred_weight_gradients(stage: PricedStage, output: Integers) -> tuple[Integers, Integers, Integers]:
    """Index of the fullest stage, and the bytes that wait for weight gradients, before and of the backward at work.

    They are 0 but under ZB-H1.

    Under ZB-H1 all stages have equally many micro-batches in flight, but on stage r up to r of them only wait for their
    weight gradients. They have given back their chunk's output. Where a weight gradient needs more memory than a
    backward pass, later stages are fuller; where it needs less, a stage is fullest as soon as all are in flight.
    """
    plans, work, group = stage.plans, stage.work, stage.group
    is_deferring = plans.schedule == ZERO_BUBBLE
    working = _of_layers_at_work(stage)
    deferred = stage.of_layers("deferred_bytes") + np.where(group.is_last, work.head_deferred_bytes, 0)
    # The sum of those in flight has what a waiting micro-batch's layers keep, and its output. `deferred_bytes` is what
    # waits less what the layers keep, so that the output, which is gone as well, remains to be taken off.
    more, most, fullest = deferred - output, plans.num_micro_batches - 1, group.start
    if np.any(group.count > 1):
        # On stage r, min(r, m - 1) micro-batches wait, so that the first stage where r reaches m - 1 is as full as any,
        # unless the group ends before it.
        later = np.clip(most - group.start, 0, np.maximum(group.count - 1, 0))
        fullest = fullest + np.where(is_deferring & (more > 0), later, 0)
    # When the backward pass at work comes to the last layer, or to the end of that, which is a norm.
    at_work = np.maximum(deferred - work.layer.deferred_bytes, 0)
    if stage.setting.implementation.counted_moments:
        at_work = np.maximum(at_work, deferred + norm_bytes(stage.setting, work.held_hidden_bytes) - working)
    waiting = np.minimum(fullest, most)
    # After the warm-up p - r are in flight, none of which waits; from then on each further one lets one more wait.
    first_waiting = plans.num_micro_batches - (plans.pipeline_parallel_size - fullest)
    waiting = np.where(more < 0, np.clip(first_waiting, 0, waiting), waiting)
    return fullest, is_deferring * waiting * more, is_deferring * at_work


def _kept_at_ends(stage: PricedStage) -> Integers:
    """Bytes of one chunk's output for one micro-batch, of the embedding's dropout's mask, and of `staying_bytes`."""
    setting = stage.setting
    kept: Integers = stage.staying_bytes + np.where(stage.group.is_last, 0, _output_bytes(stage))
    if setting.implementation.dropout:
        # The mask has a byte for each element. Only the first of v chunks has one, and the sum counts chunks.
        mask = stage.work.held_hidden_bytes // setting.dtype_bytes // stage.plans.virtual_pipeline_size
        kept = kept + np.where(stage.group.is_first, mask, 0)
    return kept


def _output_bytes(stage: PricedStage) -> Integers:
    """Bytes that a rank keeps of the output of one chunk for one micro-batch."""
    outputs, held = stage.setting.implementation.kept_outputs, stage.work.held_hidden_bytes
    if outputs == "part":
        # What is sent in parts is kept in parts; with sequence parallelism the output is a part from the start.
        part = stage.work.hidden_bytes // stage.plans.tensor_parallel_size
        return np.where(stage.plans.sequence_parallel, held, part)
    return held if outputs == "whole" else np.zeros_like(held)


def _being_sent_bytes(stage: PricedStage) -> Integers:
    """Bytes of the gradient that the last stage sent after the previous micro-batch, and keeps until it sends the next.

    With two micro-batches, the second holds it in place of a further input. Other trainers are not known to hold it.
    """
    plans = stage.plans
    held = (plans.pipeline_parallel_size > 1) & (plans.num_micro_batches > 2)
    if _lets_outputs_go(stage):  # several chunks hold an output in its place
        held = held & _ends_whole(stage)
    return np.where(held & stage.setting.implementation.counted_moments, stage.work.held_hidden_bytes, 0)


def _communication_bytes(stage: PricedStage, end: EndBytes) -> Integers:
    """Bytes of receive buffers, for the input at work and the next one, and of gathered sequences and layers."""
    plans, work, is_last = stage.plans, stage.work, stage.group.is_last
    inputs = np.where(is_last, end.received, 2 * work.held_hidden_bytes)
    if stage.setting.implementation.counted_moments:
        inputs = inputs - np.where(_has_no_next_input(stage), work.held_hidden_bytes, 0)
        # Once a pipeline is filled, ZB-H1 puts weight gradients, which need no input, after every backward pass.
        is_alone = (plans.schedule == ZERO_BUBBLE) & (plans.num_micro_batches >= plans.pipeline_parallel_size)
        inputs = inputs - np.where(is_alone, work.held_hidden_bytes, 0)
    received = np.where(plans.pipeline_parallel_size > 1, inputs, 0)
    gathered = np.where(is_last, end.gathered, work.layer.gathered_bytes)
    whole: Integers = received + gathered
    if np.any(plans.zero_stage >= 3):
        is_sharded = (plans.zero_stage >= 3) & (num_shards(stage.setting, plans) > 1)
        whole = whole + np.where(is_sharded, gathered_bytes(stage), 0)
    return whole


def _has_no_next_input(stage: PricedStage) -> Booleans:
    """Whether the fullest moment is in the last micro-batch: the only one, or that of a last stage which is then full.

    That is so under GPipe, and under ZB-H1 where all others wait for their weight gradients.
    """
    plans, p = stage.plans, stage.plans.pipeline_parallel_size
    fills = (plans.schedule == GPIPE) | ((plans.schedule == ZERO_BUBBLE) & (plans.num_micro_batches < p))
    return (plans.num_micro_batches == 1) | (stage.group.is_last & fills)
