"""Memory of one rank of each pipeline stage, at the peak of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conf.units import FLOAT32_BYTES
from train_core.costs.setting import Booleans, Integers, Plans, Setting, by_distinct
from train_core.costs.stages import StageGroup
from train_core.costs.step.replicas import held_parameters, owned_parameters
from train_core.costs.step.schedule import GPIPE, INTERLEAVED, ZERO_BUBBLE, largest_group
from train_core.costs.step.sharded_memory import fullest_moment, is_fully_sharded
from train_core.costs.step.uneven_chunks import heavier_in_flight, losses_of_smaller_groups, more_in_uneven_chunks
from train_core.costs.step.whole_under_zero import gathered_bytes, gradient_elements
from train_core.costs.terms import GroupMemory
from train_core.costs.work import Work, dense_layers, of_layers

ADAM_STATES = 2
ALL = np.iinfo(np.int64).max  # GPipe has no limit of its own; the number of micro-batches is the limit


def group_memory(setting: Setting, plans: Plans, work: Work, group: StageGroup) -> GroupMemory:
    parameters, experts = held_parameters(setting, plans, work, group)
    share = owned_parameters(setting, plans, parameters, experts)
    copies = (ADAM_STATES + (setting.dtype != "fp32")) * FLOAT32_BYTES  # fp32 weights need no master copy
    if setting.offload_optimizer:
        copies = 0  # the host holds them all
    stage, activations = _fullest(setting, plans, work, group)
    gaps: Integers = np.asarray(0)
    if setting.cluster.fragmentation > 0:
        gaps = (activations * setting.cluster.fragmentation).astype(np.int64)
    memory = GroupMemory(
        stage=stage,
        parameters=parameters,
        weights_bytes=np.where(plans.zero_stage >= 3, share, parameters) * setting.dtype_bytes,
        gradients_bytes=gradient_elements(setting, plans, group, parameters, share) * setting.gradient_bytes,
        optimizer_bytes=np.where(plans.zero_stage >= 1, share, parameters) * copies,
        activations_bytes=activations,
        working_bytes=np.where(
            group.is_last, work.end.working + _being_sent_bytes(setting, plans, work), work.layer.working_bytes
        ),
        logits_bytes=_logits_bytes(plans, work, group),
        communication_bytes=_communication_bytes(setting, plans, work, group),
        reserved_bytes=setting.cluster.reserved_memory_bytes + gaps,
    )
    is_sharded = is_fully_sharded(setting, plans)
    return _fully_sharded(setting, plans, work, group, memory, share, is_sharded) if np.any(is_sharded) else memory


def _fully_sharded(
    setting: Setting,
    plans: Plans,
    work: Work,
    group: StageGroup,
    memory: GroupMemory,
    share: Integers,
    is_sharded: Booleans,
) -> GroupMemory:
    """`memory`, in which the plans of this trainer's ZeRO-3 are replaced by what FSDP2 holds.

    Args:
        share: parameters that a rank owns.
    """
    moment = fullest_moment(setting, plans, work, group, share)
    masters = share * FLOAT32_BYTES
    states = np.zeros_like(masters) if setting.offload_optimizer else ADAM_STATES * masters
    held = moment._asdict() | {"weights_bytes": masters, "optimizer_bytes": states}
    return replace(
        memory, **{name: np.where(is_sharded, column, getattr(memory, name)) for name, column in held.items()}
    )


def chunks_in_flight(plans: Plans, stage: Integers) -> Integers:
    """Forward passes of model chunks whose backward a stage has not finished; without interleaving a chunk is a stage.

    Source: arXiv 2104.04473, section 2.2 (GPipe, 1F1B, interleaved); arXiv 2401.10241, section 2.2: ZB-H1 defers
    weight gradients until every stage holds as many as the first.
    """
    p, v, schedule = plans.pipeline_parallel_size, plans.virtual_pipeline_size, plans.schedule
    later, group = p - stage, largest_group(plans.num_micro_batches, p)
    most = np.where(schedule == ZERO_BUBBLE, p, np.where(schedule == GPIPE, ALL, later))
    most = np.where(schedule == INTERLEAVED, 2 * (later - 1) + (v - 1) * group + 1, most)
    held: Integers = np.minimum(most, plans.num_micro_batches * v)
    return held


def _logits_bytes(plans: Plans, work: Work, group: StageGroup) -> Integers:
    if not np.any(group.is_last):
        return np.asarray(0)
    held: Integers = np.where(group.is_last, work.end.logits + _waiting_losses(plans) * work.kept_logits_bytes, 0)
    return held


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


def _fullest(setting: Setting, plans: Plans, work: Work, group: StageGroup) -> tuple[Integers, Integers]:
    """Index of a group's fullest stage, and the bytes of its activations, which are those of everything in flight.

    The earlier a stage, the more it has in flight. Under ZB-H1 all stages have equally many, but on stage r up to r of
    them only wait for their weight gradients. Where these need more memory than a backward pass, later
    stages are fuller.
    """
    layers, ends = _kept_by_layers(setting, plans, work, group), _kept_at_ends(setting, plans, work, group)
    in_flight = by_distinct(plans, "num_micro_batches", lambda fewer: chunks_in_flight(fewer, group.start))
    held: Integers = in_flight * (layers + ends)
    if np.any(plans.virtual_pipeline_size > 1):
        # Of the last stage's chunks only the last has no output; its backward pass follows at once.
        others = np.where(group.is_last & (plans.virtual_pipeline_size > 1), in_flight - 1, 0)
        held += others * _output_bytes(setting, plans, work)
    if np.any(group.is_last):
        # The inputs of the final norm and of the head wait with each loss.
        waiting = _waiting_losses(plans) * 2 * work.held_hidden_bytes
        held = held + np.where(group.is_last, work.end.activations + waiting, 0)
    if np.any(heavier := group.layers % plans.virtual_pipeline_size):
        most = by_distinct(
            plans,
            "num_micro_batches",
            lambda fewer: heavier_in_flight(fewer, group, heavier, chunks_in_flight(fewer, group.start)),
        )
        held = held + more_in_uneven_chunks(plans, work, group, in_flight, most, layers)
    is_deferring = plans.schedule == ZERO_BUBBLE
    if not np.any(is_deferring):
        return group.start, held
    dense = dense_layers(setting, group.layers, group.is_first)
    deferred = of_layers(plans, work, "deferred_bytes", group.layers, dense)
    deferred = deferred + np.where(group.is_last, work.head_deferred_bytes, 0)
    more, most, stage = deferred - ends, plans.num_micro_batches - 1, group.start
    if np.any(group.count > 1):
        later = np.clip(most - group.start, 0, np.maximum(group.count - 1, 0))
        stage = stage + np.where(is_deferring & (more > 0), later, 0)
    at_work = np.maximum(deferred - work.layer.deferred_bytes, 0)  # when its backward pass comes to the last layer
    return stage, held + is_deferring * (np.minimum(stage, most) * more + at_work)


def _kept_by_layers(setting: Setting, plans: Plans, work: Work, group: StageGroup) -> Integers:
    """Bytes that the layers of one chunk keep for one micro-batch."""
    dense = dense_layers(setting, group.layers, group.is_first)
    kept: Integers = of_layers(plans, work, "kept_bytes", group.layers, dense) // plans.virtual_pipeline_size
    return kept


def _kept_at_ends(setting: Setting, plans: Plans, work: Work, group: StageGroup) -> Integers:
    """Bytes of one chunk's output for one micro-batch, and of the mask of the embedding's dropout."""
    kept: Integers = np.where(group.is_last, 0, _output_bytes(setting, plans, work))
    if setting.implementation.dropout:
        mask = work.held_hidden_bytes // setting.dtype_bytes // plans.virtual_pipeline_size
        kept = kept + np.where(group.is_first, mask, 0)
    return kept


def _output_bytes(setting: Setting, plans: Plans, work: Work) -> Integers:
    """Bytes that a rank keeps of the output of one chunk for one micro-batch."""
    outputs = setting.implementation.kept_outputs
    if outputs == "part":
        part = work.hidden_bytes // plans.tensor_parallel_size
        return np.where(plans.sequence_parallel, work.held_hidden_bytes, part)
    return work.held_hidden_bytes if outputs == "whole" else np.zeros_like(work.held_hidden_bytes)


def _being_sent_bytes(setting: Setting, plans: Plans, work: Work) -> Integers:
    """Bytes of the gradient that the last stage sent after the previous micro-batch, and keeps until it sends the next.

    With two micro-batches, the second holds it in place of a further input. Other trainers are not known to hold it.
    """
    held = (plans.pipeline_parallel_size > 1) & (plans.num_micro_batches > 2) & setting.implementation.counted_moments
    sent: Integers = np.where(held, work.held_hidden_bytes, 0)
    return sent


def _communication_bytes(setting: Setting, plans: Plans, work: Work, group: StageGroup) -> Integers:
    """Bytes of receive buffers, for the input at work and the next one, and of gathered sequences and layers."""
    inputs = np.where(group.is_last, work.end.received, 2 * work.held_hidden_bytes)
    if setting.implementation.counted_moments:
        # Once a pipeline is filled, ZB-H1 puts weight gradients, which need no input, after every backward pass.
        is_alone = (plans.schedule == ZERO_BUBBLE) & (plans.num_micro_batches >= plans.pipeline_parallel_size)
        inputs = inputs - np.where(is_alone, work.held_hidden_bytes, 0)
    received = np.where(plans.pipeline_parallel_size > 1, inputs, 0)
    gathered = np.where(group.is_last, work.end.gathered, work.layer.gathered_bytes)
    whole: Integers = received + gathered
    if np.any(plans.zero_stage >= 3):
        whole = whole + np.where(plans.zero_stage >= 3, gathered_bytes(setting, plans, work), 0)
    return whole
