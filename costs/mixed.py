"""Time and memory of one pipeline over several types of devices, in columns, (n,), and what each type does in a step.

The types come as settings, and every one holds one block of consecutive stages. The planner's search and `estimate`
share these formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from conf.plan.setup import Setup
from costs.counts.flops import ALL, DoneShares, spared_flops, stage_model_flops
from costs.flops_rates import BlockRates
from costs.setting import Floats, Integers, Plans, Setting
from costs.stages import StageGroup
from costs.step.priced_stage import PricedStage
from costs.step.replicas import PricedReplicas
from costs.step.stage_memory import group_memory
from costs.step.step_time import (
    after_pipeline,
    hop_seconds,
    ranks_per_core,
    run_pipeline,
    slower_share,
    stage_passes,
    sum_up,
)
from costs.terms import StepColumns
from costs.work import Work


@dataclass(frozen=True, slots=True)
class TypeOfDevices:
    """One type of devices: its setting, and how many of them the job has."""

    setting: Setting
    num_devices: int

    @property
    def num_nodes(self) -> float:
        return self.num_devices / self.setting.cluster.devices_per_node


@dataclass(frozen=True, slots=True)
class StagesOnType:
    """A group of equal stages that run on one type of devices.

    Attributes:
        type_index: index of the type.
        heads_block: True if it is the first stage of a later block, which receives over the link between two types.
    """

    type_index: int
    group: StageGroup
    heads_block: bool


def mixed_step(
    types: Sequence[TypeOfDevices], plans: Plans, works: Sequence[Work], stages: Sequence[StagesOnType]
) -> StepColumns:
    """Seconds of a step by term.

    Args:
        plans: what all types have in common; the layers of the stages come from `stages`.
        works: the work of the plans on each type.
        stages: the whole pipeline in groups, first to last.
    """
    replicas = [PricedReplicas(each.setting, plans) for each in types]
    priced = [PricedStage(replicas[each.type_index], works[each.type_index], each.group) for each in stages]
    passes = [stage_passes(stage) for stage in priced]
    groups = [each.group for each in stages]
    per_core = np.asarray(max(ranks_per_core(each.num_devices, each.setting.cluster) for each in types))
    pipeline = run_pipeline(plans, groups, passes, _hops(types, plans, works, stages), per_core)
    reduced, update = after_pipeline(priced, passes)
    # The pace is that of the slowest type, whose devices differ among themselves too.
    slower = slower_share(types[0].setting, plans.world_size)
    return sum_up(pipeline, reduced * per_core, update * per_core, slower)


def _hops(
    types: Sequence[TypeOfDevices], plans: Plans, works: Sequence[Work], stages: Sequence[StagesOnType]
) -> list[Floats]:
    """Return each group's transfer to a neighbour: within its type, or between two for a block's first stage."""
    # A transfer between two types is as slow as the slower of their widest links.
    inside = [hop_seconds(each.setting, plans, work) for each, work in zip(types, works, strict=True)]
    outside = [
        hop_seconds(each.setting, plans, work, over=on_widest_link(each.setting))
        for each, work in zip(types, works, strict=True)
    ]
    hops = [inside[each.type_index] for each in stages]
    for index, (before, after) in enumerate(pairwise(stages), start=1):
        if after.heads_block:
            hops[index] = np.maximum(outside[after.type_index], outside[before.type_index])
    return hops


def on_widest_link(setting: Setting) -> Setting:
    """The setting with the widest link alone, since whatever leaves a cluster goes over that link, from any device."""
    alone = setting.cluster.model_copy(update={"links": setting.cluster.links[-1:], "devices_per_node": 1})
    return replace(setting, cluster=alone)


def block_shortfall(
    setting: Setting, plans: Plans, work: Work, stages: Sequence[StagesOnType]
) -> tuple[Integers, Integers, Integers]:
    """Bytes that the worst of these stages lacks on its device (negative: bytes left), its index, and what it needs."""
    # Devices of several types differ in memory, so the worst stage is the one that lacks most, not the fullest.
    least = np.iinfo(np.int64).min
    shortfall: Integers = np.asarray(least)
    worst, needed = np.asarray(0), np.asarray(0)
    for each in stages:
        total = group_memory(PricedStage(PricedReplicas(setting, plans), work, each.group)).total_bytes
        lacks = np.where(each.group.count > 0, total - setting.cluster.device.memory_bytes, least)
        fuller = lacks > shortfall
        shortfall = np.where(fuller, lacks, shortfall)
        worst, needed = np.where(fuller, each.group.start, worst), np.where(fuller, total, needed)
    return shortfall, worst, needed


def block_rates(
    setup: Setup,
    step_seconds: float,
    memory_of_stages: Sequence[int],
    devices_per_rank: float = 1.0,
    measured_peak: float | None = None,
    done: DoneShares = ALL,
) -> tuple[BlockRates, ...]:
    """One entry for each block of a mixed job, and none where all devices are the same.

    Args:
        memory_of_stages: bytes of the fullest rank of every stage.
        devices_per_rank: less than 1 where ranks of a CPU share cores.
        measured_peak: FLOP/s of one device, where the same was measured for all; None takes what each device declares.
        done: as in `model_flops`.
    """
    if setup.mixed is None:
        return ()
    ends = [0, *accumulate(setup.stages_per_block)]
    rates = []
    for block, (start, end) in zip(setup.mixed, pairwise(ends), strict=True):
        device, layers = block.cluster.device, setup.layers_per_stage[start:end]
        of_model = range(sum(setup.layers_per_stage[:start]), sum(setup.layers_per_stage[:end]))
        has_head = end == setup.parallel.pipeline_parallel_size
        flops = stage_model_flops(setup.model, setup.batch.global_batch_size, of_model, has_head=has_head)
        num_mixtures = sum(layer >= setup.model.num_dense_layers for layer in of_model)
        flops -= spared_flops(setup.model, setup.batch.global_batch_size, 3 * len(of_model), 3 * num_mixtures, done)
        rate = flops / step_seconds / (block.num_devices * devices_per_rank)
        peak = measured_peak or device.peak_flops_per_second[setup.precision.dtype]
        rates.append(
            BlockRates(
                cluster=block.cluster.name,
                device=device.name,
                num_ranks=block.num_devices,
                layers_per_stage=layers,
                model_flops_per_second_per_device=rate,
                peak_flops_per_second=peak,
                model_flops_utilization=rate / peak,
                peak_memory_bytes=max(memory_of_stages[start:end]),
                memory_capacity_bytes=device.memory_bytes,
            )
        )
    return tuple(rates)
