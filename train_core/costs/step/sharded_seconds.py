"""Seconds of what ZeRO-2 and ZeRO-3 do for every micro-batch of a stage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conf.units import FLOAT32_BYTES
from train_core.costs.layer.shard import FULL
from train_core.costs.primitives.collectives import shown_seconds
from train_core.costs.primitives.kernels import memory_bound_seconds
from train_core.costs.primitives.narrow import gathered_weight_bytes
from train_core.costs.setting import Floats, Integers, Plans, Setting
from train_core.costs.step.priced_stage import PricedStage
from train_core.costs.step.replicas import num_shards
from train_core.costs.step.sharded_memory import prefetches_layers


class _Unit(NamedTuple):
    """The parameters that are gathered at once, some of them those of experts, and how many times."""

    parameters: Integers
    experts: Integers
    number: Integers


def sharded_seconds(stage: PricedStage, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
    """Seconds before the forward pass of a micro-batch and after it.

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
    gathers_after_forward = np.where(is_prefetched | (plans.recompute != FULL), 1.0, 2.0)
    # Where layers are gathered ahead, or without full recomputation, the backward pass gathers each once more.
    gathers = _gathers(stage, units)
    gathered = np.where(plans.zero_stage < 3, 0.0, sum(gathers))
    again = gathers[1:] if setting.implementation.shards_masters else gathers
    gathered_again = np.where(plans.zero_stage < 3, 0.0, sum(again))
    scattered = np.where(plans.zero_stage < 2, 0.0, _scatters(stage, units))
    copies_before, copies_after = shard_copy_seconds(setting, plans, stage.parameters)
    host_before, host_after = _host_seconds(stage, gathers_after_forward)
    pace = stage.replicas.pace
    return (
        shown_seconds(setting, gathered, forward, overlap, pace) + copies_before + host_before,
        shown_seconds(setting, gathers_after_forward * gathered_again + scattered, backward, overlap, pace)
        + copies_after
        + host_after,
    )


def _units(stage: PricedStage) -> list[_Unit]:
    """What is in no layer, which trainers that gather layer by layer keep between the passes, and every layer."""
    work, dense, ends = stage.work, stage.dense_layers, stage.end_parameters
    none = np.zeros_like(ends)
    units = [
        _Unit(ends, none, (ends > 0).astype(np.int64)),
        _Unit(work.layer_parameters, work.expert_parameters, stage.group.layers - dense),
    ]
    return [*units, _Unit(work.dense_layer_parameters, none, dense * np.ones_like(ends))] if np.any(dense) else units


def _gathers(stage: PricedStage, units: list[_Unit]) -> list[Floats]:
    """Seconds in which all units of each kind are gathered once."""
    each, n = gathered_weight_bytes(stage.setting), stage.setting.implementation.gathered_messages
    # A unit goes in n messages of an n-th of it each, so that the latency counts n times.
    gathers = [stage.replicas.gather_seconds(unit.parameters / n, unit.experts / n, each) for unit in units]
    return [n * unit.number * gather for unit, gather in zip(units, gathers, strict=True)]


def _scatters(stage: PricedStage, units: list[_Unit]) -> Floats:
    each, n = stage.setting.reduced_bytes, stage.setting.implementation.scattered_messages
    total: Floats = np.asarray(0.0)
    for unit in units:
        message, experts = unit.parameters / n, unit.experts / n
        scatter = stage.replicas.gather_seconds(message, experts, each)
        scatter = scatter + stage.replicas.across_groups_seconds(message, experts, each)
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
