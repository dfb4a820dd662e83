"""Memory of one rank of each pipeline stage, at the peak of a step.

State (weights, gradients, optimizer) is there all the time. The peak is one moment of the step, where most activations
are kept beside it: a stage has done every forward pass that comes before its first backward pass, and is at work on the
latter. The last stage's other moments (the loss, the head's gradient) are compared in `work.end_bytes`.

Of p stages with m micro-batches of v chunks, stage r (from 0) has in flight, all of them m v at most,

    GPipe m      1F1B p - r      interleaved 2 (p - r - 1) + (v - 1) G + 1      ZB-H1 p

where G is the largest group of micro-batches (`schedule.largest_group`).

    activations = chunks in flight x (what the layers of a chunk keep + the chunk's output, where a trainer keeps it)
                + on the others, of this trainer: the output that is being sent
                + on the last stage: inputs of the final norm and the head, and losses that wait for backward passes
                + under interleaving: what chunks with a layer more keep
                + under ZB-H1: inputs and output gradients of the weight gradients that are put off

Where chunks are uneven, which of them are in flight changes from pass to pass, so that it matters which are the heavier
ones. Groups of micro-batches go forward through chunk after chunk and backward through the last chunk first: with G
micro-batches in a group, v chunks of which h are heavier, and N passes ahead,

    heavier in flight after B backward passes = heavier among the first B + N forward passes - those among the first B
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conf.plan.knobs import SCHEDULES
from conf.units import FLOAT32_BYTES
from train_core.costs.setting import Booleans, Integers, Plans, by_distinct
from train_core.costs.stages import StageGroup
from train_core.costs.step.priced_stage import PricedStage
from train_core.costs.step.replicas import num_shards
from train_core.costs.step.schedule import GPIPE, INTERLEAVED, ZERO_BUBBLE, largest_group, smallest_group
from train_core.costs.step.sharding import fullest_moment, gathered_bytes, gradient_elements, is_fully_sharded
from train_core.costs.terms import GroupMemory

ADAM_STATES = 2
NO_LIMIT = np.iinfo(np.int64).max  # GPipe has no limit of its own; the number of micro-batches is the limit


def group_memory(stage: PricedStage) -> GroupMemory:
    """Bytes on one rank of the fullest stage of a group of equal stages."""
    setting, work, is_last = stage.setting, stage.work, stage.group.is_last
    copies = (ADAM_STATES + (setting.dtype != "fp32")) * FLOAT32_BYTES  # fp32 weights need no master copy
    if setting.offload_optimizer:
        copies = 0  # the host holds them all
    fullest, activations = _activations(stage)
    gaps: Integers = np.asarray(0)
    if setting.cluster.fragmentation > 0:
        # Gaps come from activations alone, since state is allocated once and stays.
        gaps = (activations * setting.cluster.fragmentation).astype(np.int64)
    memory = GroupMemory(
        stage=fullest,
        parameters=stage.parameters,
        weights_bytes=_held_from(stage, zero_stage=3) * setting.dtype_bytes,
        gradients_bytes=gradient_elements(stage) * setting.gradient_bytes,
        optimizer_bytes=_held_from(stage, zero_stage=1) * copies,
        activations_bytes=activations,
        working_bytes=np.where(is_last, work.end.working + _being_sent_bytes(stage), work.layer.working_bytes),
        logits_bytes=_logits_bytes(stage),
        communication_bytes=_communication_bytes(stage),
        reserved_bytes=setting.cluster.reserved_memory_bytes + gaps,
    )
    if setting.implementation.update_working_bytes and not setting.offload_optimizer:
        memory = _with_update(stage, memory)
    is_sharded = is_fully_sharded(stage)
    return _fully_sharded(stage, memory, is_sharded) if np.any(is_sharded) else memory


def _with_update(stage: PricedStage, memory: GroupMemory) -> GroupMemory:
    """Return `memory` at the update instead, where that makes more than passes hold beside all states."""
    made = _held_from(stage, zero_stage=1) * stage.setting.implementation.update_working_bytes
    passing = memory.activations_bytes + memory.logits_bytes + memory.communication_bytes
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


def chunks_in_flight(plans: Plans, stage: Integers) -> Integers:
    """Forward passes of model chunks whose backward a stage has not finished; without interleaving a chunk is a stage.

    Source: arXiv 2104.04473, section 2.2 (GPipe, 1F1B, interleaved); arXiv 2401.10241, section 2.2: ZB-H1 defers
    weight gradients until every stage holds as many as the first.
    """
    p, v = plans.pipeline_parallel_size, plans.virtual_pipeline_size
    # Stage r runs p - r forward passes before its first backward pass. Under interleaving the warm-up of Megatron-LM's
    # schedules.py is 2 (p - r - 1) + (v - 1) x group, and one more forward pass comes before the first backward pass.
    later, group = p - stage, largest_group(plans.num_micro_batches, p)
    most = {
        "1f1b": later,
        "gpipe": np.asarray(NO_LIMIT),
        "interleaved": 2 * (later - 1) + (v - 1) * group + 1,
        "zero-bubble": p,
    }
    return np.minimum(np.choose(plans.schedule, [most[name] for name in SCHEDULES]), plans.num_micro_batches * v)


def _logits_bytes(stage: PricedStage) -> Integers:
    if not np.any(stage.group.is_last):
        return np.asarray(0)
    # The loss at work has its logits in several copies, each waiting one in a single fp32 copy.
    of_all = stage.work.end.logits + _waiting_losses(stage.plans) * stage.work.kept_logits_bytes
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


def _activations(stage: PricedStage) -> tuple[Integers, Integers]:
    """Index of a group's fullest stage, and the bytes of its activations; the module's docstring has the sum.

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
        return group.start, held
    fullest, deferred = _deferred_weight_gradients(stage, output)
    return fullest, held + deferred


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
    """Return what the last stage keeps around the loss; inputs of the final norm and the head wait with each loss."""
    waiting = _waiting_losses(stage.plans) * 2 * stage.work.held_hidden_bytes
    return np.where(stage.group.is_last, stage.work.end.activations + waiting, 0)


def _excess_in_heavier_chunks(stage: PricedStage, in_flight: Integers) -> Integers:
    """Bytes that chunks in flight keep at the fullest moment beyond chunks of average length, which may be fewer."""
    plans, group, chunks = stage.plans, stage.group, stage.plans.virtual_pipeline_size
    each, heavier = group.layers // chunks, group.layers % chunks
    most = by_distinct(
        plans,
        "num_micro_batches",
        lambda fewer: heavier_in_flight(fewer, group, heavier, chunks_in_flight(fewer, group.start)),
    )
    light = _kept_bytes_of(stage, each)
    more = _kept_bytes_of(stage, each + 1) - light
    # Layers are taken to be alike here; what those without experts keep less is in the average that is counted already.
    average = (chunks * light + heavier * more) // chunks
    return np.where(heavier > 0, in_flight * light + most * more - in_flight * average, 0)


def _deferred_weight_gradients(stage: PricedStage, output: Integers) -> tuple[Integers, Integers]:
    """Index of the fullest stage, and the bytes that wait for weight gradients: of ZB-H1, else 0.

    Under ZB-H1 all stages have equally many micro-batches in flight, but on stage r up to r of them only wait for their
    weight gradients. They have given back their chunk's output. Where a weight gradient needs more memory than a
    backward pass, later stages are fuller; where it needs less, a stage is fullest as soon as all are in flight.
    """
    plans, work, group = stage.plans, stage.work, stage.group
    is_deferring = plans.schedule == ZERO_BUBBLE
    deferred = stage.of_layers("deferred_bytes") + np.where(group.is_last, work.head_deferred_bytes, 0)
    # The sum of those in flight has what a waiting micro-batch's layers keep, and its output. `deferred_bytes` is what
    # waits less what the layers keep, so that the output, which is gone as well, remains to be taken off.
    more, most, fullest = deferred - output, plans.num_micro_batches - 1, group.start
    if np.any(group.count > 1):
        # On stage r, min(r, m - 1) micro-batches wait, so that the first stage where r reaches m - 1 is as full as any,
        # unless the group ends before it.
        later = np.clip(most - group.start, 0, np.maximum(group.count - 1, 0))
        fullest = fullest + np.where(is_deferring & (more > 0), later, 0)
    at_work = np.maximum(deferred - work.layer.deferred_bytes, 0)  # when its backward pass comes to the last layer
    waiting = np.minimum(fullest, most)
    # After the warm-up p - r are in flight, none of which waits; from then on each further one lets one more wait.
    first_waiting = plans.num_micro_batches - (plans.pipeline_parallel_size - fullest)
    waiting = np.where(more < 0, np.clip(first_waiting, 0, waiting), waiting)
    return fullest, is_deferring * (waiting * more + at_work)


def _kept_at_ends(stage: PricedStage) -> Integers:
    """Bytes of one chunk's output for one micro-batch, and of the mask of the embedding's dropout."""
    setting = stage.setting
    kept: Integers = np.where(stage.group.is_last, 0, _output_bytes(stage))
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


def _communication_bytes(stage: PricedStage) -> Integers:
    """Bytes of receive buffers, for the input at work and the next one, and of gathered sequences and layers."""
    plans, work, is_last = stage.plans, stage.work, stage.group.is_last
    inputs = np.where(is_last, work.end.received, 2 * work.held_hidden_bytes)
    if stage.setting.implementation.counted_moments:
        # Once a pipeline is filled, ZB-H1 puts weight gradients, which need no input, after every backward pass.
        is_alone = (plans.schedule == ZERO_BUBBLE) & (plans.num_micro_batches >= plans.pipeline_parallel_size)
        inputs = inputs - np.where(is_alone, work.held_hidden_bytes, 0)
    received = np.where(plans.pipeline_parallel_size > 1, inputs, 0)
    gathered = np.where(is_last, work.end.gathered, work.layer.gathered_bytes)
    whole: Integers = received + gathered
    if np.any(plans.zero_stage >= 3):
        is_sharded = (plans.zero_stage >= 3) & (num_shards(stage.setting, plans) > 1)
        whole = whole + np.where(is_sharded, gathered_bytes(stage), 0)
    return whole


def heavier_in_flight(plans: Plans, group: StageGroup, heavier: Integers, in_flight: Integers) -> Integers:
    """The most chunks with a layer more that are in flight at once.

    The heavier chunks come last on the first stage and first on the others (`conf.plan.chunks`). The number grows until
    they have gone forward, and falls while they go backward, so that it is greatest where the one ends or the other
    begins. The last stage is fullest at the loss, when all heavier chunks of a group have gone forward
    and none backward.

    Args:
        heavier: how many chunks of the stage have a layer more.
        in_flight: how many chunks are in flight at most; it stays so until the last forward pass.

    Chunks come in periods of `size * v`, of which a `run` of `size * heavier` is of heavier chunks: the first in the
    period on all stages but the first, the last in it (`is_late`) on the first stage, whose embedding makes a chunk
    lighter. Where chunks are uneven, which of them are in flight changes by one at a time, so that the most heavier
    ones are there where a run begins or ends; these are the two `moments`, in chunks done.
    """
    size, v = largest_group(plans.num_micro_batches, plans.pipeline_parallel_size), plans.virtual_pipeline_size
    period, run, is_first = size * v, size * heavier, group.is_first
    last = np.maximum(plans.num_micro_batches * v - in_flight, 0)
    # At the first moment forward passes, in_flight further on, end a run; at the second, backward passes begin one.
    # Chunks go backward in the opposite order, so that a run which is early forward is late backward.
    moments = np.where(is_first, period, run) - in_flight, np.where(is_first, 0, period - run)
    counted = []
    # Every period is alike; after the last forward pass fewer and fewer chunks are in flight, so that no later moment
    # counts.
    for done in (np.minimum(moment % period, last) for moment in moments):
        forward = _heavier_among_first(done + in_flight, period, run, is_late=is_first)
        counted.append(forward - _heavier_among_first(done, period, run, is_late=~is_first))
    one, other = counted
    return np.where(group.is_last, run, np.maximum(one, other))


def losses_of_smaller_groups(plans: Plans) -> Integers:
    """Losses that wait on the last stage in groups with a micro-batch less than the first one has.

    As many passes are ahead there as the first group needs, which is one more for each chunk but the last.
    """
    m, p = plans.num_micro_batches, plans.pipeline_parallel_size
    smallest = smallest_group(m, p)
    return np.where(smallest < largest_group(m, p), np.minimum(plans.virtual_pipeline_size - 1, smallest - 1), 0)


def _heavier_among_first(passes: Integers, period: Integers, run: Integers, *, is_late: Booleans) -> Integers:
    """Heavier chunks among so many passes in one direction, where those of each period come late, or else early."""
    # Each whole period has a run in it, and the one that has begun has what of its run is done.
    return passes // period * run + np.clip(passes % period - np.where(is_late, period - run, 0), 0, run)


def _kept_bytes_of(stage: PricedStage, layers: Integers) -> Integers:
    """Bytes that so many layers of one chunk keep, of which every n-th recomputes."""
    work = stage.work
    # The first of every n layers recomputes, so that their number is a quotient rounded up.
    repeating = by_distinct(stage.plans, "recompute_every", lambda fewer: -(-layers // fewer.recompute_every))
    return repeating * work.layer.kept_bytes + (layers - repeating) * work.plain_layer.kept_bytes
