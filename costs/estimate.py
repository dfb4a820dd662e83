"""`estimate(setup)` predicts one optimizer step on paper: its time, its memory and its rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from conf.plan.knobs import KNOB
from conf.plan.setup import Setup
from conf.types.cluster_spec import ClusterSpec
from conf.types.schema import Frozen
from costs.counts.flops import (
    ALL,
    FLOPS_FORMULA,
    DoneShares,
    hardware_flops,
    model_flops,
    repeated_flops,
    stopped_flops,
)
from costs.counts.parameters import num_parameters, require_computable
from costs.flops_rates import BlockRates, flops_fields
from costs.mixed import StagesOnType, TypeOfDevices, block_rates, mixed_step
from costs.setting import Plans, Setting
from costs.stages import StageGroup, each_stage, listed_blocks, listed_stages
from costs.step.priced_stage import PricedStage, priced_stages
from costs.step.replicas import PricedReplicas
from costs.step.stage_memory import group_memory
from costs.step.step_time import step_columns
from costs.terms import MEMORY_KINDS, StageMemory, StepColumns, StepTime, row_of
from costs.trainers import TRISWEEP, Implementation
from costs.work import Work, work_of

RATES = (
    *("tokens_per_second", "model_flops_per_second_per_device", "hardware_flops_per_second_per_device"),
    *("model_flops_utilization", "hardware_flops_utilization"),
)
MOST_AT_ONCE = 256
"""Setups that are priced together, so that the columns of all their stages stay small."""


class Estimate(Frozen):
    """The predicted cost of one step, in every number. Names are shared with `measurement.Performance`.

    Attributes:
        implementation: the trainer whose step this is.
        stages: memory of one rank of every pipeline stage.
        worst_stage: the one that leaves least of its device's memory.
        peak_memory_bytes: the worst stage's.
        memory_capacity_bytes: what one of its devices has.
        shortfall_bytes: by how much the worst stage does not fit; 0 when it fits.
        step_terms: where step_seconds goes.
        peak_flops_per_second: of one device; in a mixed job the mean over all devices.
        blocks: each type of devices of a mixed job, in the order of the pipeline; empty where all are the same.
    """

    implementation: str
    num_parameters: int
    model_flops: int
    hardware_flops: int
    flops_formula: str
    stages: Annotated[tuple[StageMemory, ...], Field(strict=False)]
    worst_stage: int
    peak_memory_bytes: int
    memory_capacity_bytes: int
    shortfall_bytes: int
    step_terms: StepTime
    step_seconds: float
    tokens_per_second: float
    model_flops_per_second_per_device: float
    hardware_flops_per_second_per_device: float
    peak_flops_per_second: float
    model_flops_utilization: float
    hardware_flops_utilization: float
    blocks: Annotated[tuple[BlockRates, ...], Field(strict=False)] = ()

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the tensors on the rank that holds most, to be compared with what a GPU's allocator reports."""
        return max(stage.allocated_bytes for stage in self.stages)

    @property
    def memory_share(self) -> float:
        """The part of the worst stage's device that is taken."""
        return self.peak_memory_bytes / self.memory_capacity_bytes

    @property
    def fits(self) -> bool:
        return self.shortfall_bytes == 0

    def times(self, factor: float) -> Estimate:
        """The same step, if all that it does takes so many times as long; rates of blocks stay as they are."""
        terms = {name: factor * seconds for name, seconds in self.step_terms.by_term().items()}
        slower = {name: getattr(self, name) / factor for name in RATES}
        step = {"step_seconds": factor * self.step_seconds, "step_terms": StepTime(**terms)}
        return self.model_copy(update=step | slower)


def estimate(setup: Setup, implementation: Implementation = TRISWEEP) -> Estimate:
    """Predict a step of `setup`, without devices, as this trainer or another one carries it out.

    Raises:
        ConfigError: the setup's sizes are beyond 64 bits.
    """
    return estimates([(setup, implementation)])[0]


def estimates(requests: Sequence[tuple[Setup, Implementation]]) -> list[Estimate]:
    """Estimate each setup; those on the same devices are priced together, which takes hardly longer than one.

    Raises:
        ConfigError: a setup's sizes are beyond 64 bits.
    """
    for setup, _ in requests:
        require_computable(setup.model, setup.batch.micro_batch_size)
    found = {index: _mixed_estimate(*each) for index, each in enumerate(requests) if each[0].mixed is not None}
    for setting, alike in _setups_by_setting(requests):
        found |= zip(alike, _uniform_estimates(setting, [requests[index] for index in alike]), strict=True)
    return [found[index] for index in range(len(requests))]


def _setups_by_setting(requests: Sequence[tuple[Setup, Implementation]]) -> Iterator[tuple[Setting, list[int]]]:
    """The setups that can be columns of one price: all in one setting, their stages in as many groups."""
    kinds: list[tuple[Setting, int, list[int]]] = []
    for index, (setup, implementation) in enumerate(requests):
        if setup.mixed is not None:
            continue
        setting, number = setting_of(setup, implementation), len(listed_stages(setup.layers_per_stage))
        room = (kind for kind in kinds if kind[1] == number and len(kind[2]) < MOST_AT_ONCE)
        known = next((found for own, _, found in room if own == setting), None)
        if known is None:
            kinds.append((setting, number, [index]))
        else:
            known.append(index)
    for setting, _, found in kinds:
        yield setting, found


def _uniform_estimates(setting: Setting, requests: Sequence[tuple[Setup, Implementation]]) -> list[Estimate]:
    """The estimates of setups that are columns of one price."""
    listed = [listed_stages(setup.layers_per_stage) for setup, _ in requests]
    plans = plans_of([setup for setup, _ in requests])
    work = work_of(setting, plans)  # by far the most expensive part, so time and memory share it
    joined = [StageGroup.join(groups) for groups in zip(*listed, strict=True)]
    step = step_columns(priced_stages(setting, plans, work, joined))
    stages = [each_stage(groups) for groups in listed]
    counts = [len(of_setup.layers) for of_setup in stages]
    # Memory is listed stage by stage, so that each row of plans and work is repeated for every stage of its setup.
    owner = np.repeat(np.arange(len(requests)), counts)
    memories = iter(_stage_memories(setting, plans.rows(owner), work.rows(owner), StageGroup.join(stages)))
    return [
        _estimate(*each, step, index, tuple(islice(memories, count)))
        for index, (each, count) in enumerate(zip(requests, counts, strict=True))
    ]


def _mixed_estimate(setup: Setup, implementation: Implementation) -> Estimate:
    """The estimate of a job whose blocks of stages run on several types of devices."""
    plans, counts = plan_of(setup), setup.stages_per_block
    types = [
        TypeOfDevices(setting_of(setup, implementation, block.cluster), block.num_devices) for block in setup.blocks
    ]
    works, groups = [work_of(each.setting, plans) for each in types], listed_blocks(setup.layers_per_stage, counts)
    on_types = [
        StagesOnType(index, group, heads_block=index > 0 and group is block[0])
        for index, block in enumerate(groups)
        for group in block
    ]
    stages: tuple[StageMemory, ...] = ()
    every = each_stage([group for block in groups for group in block])
    for of_type, work, count in zip(types, works, counts, strict=True):
        own = every.rows(slice(len(stages), len(stages) + count))
        stages += _stage_memories(of_type.setting, plans, work, own)
    return _estimate(setup, implementation, mixed_step(types, plans, works, on_types), 0, stages)


def setting_of(setup: Setup, implementation: Implementation = TRISWEEP, cluster: ClusterSpec | None = None) -> Setting:
    """The setting of a setup on its cluster, or on that of one of its blocks."""
    precision, parallel = setup.precision, setup.parallel
    return Setting(
        setup.model,
        cluster or setup.cluster,
        precision.dtype,
        implementation.in_training(setup.dropout, compiles=setup.compiles_layers),
        precision.gradient_dtype,
        precision.priced_recipe,
        parallel.expert_tensor_parallel_size,
        parallel.zero_group_size,
        parallel.offload_optimizer,
        parallel.offload_activations,
        parallel.pipeline_before_data,
        parallel.expert_dispatcher,
        parallel.context_exchange,
        optimizer=setup.optimizer if implementation.name == TRISWEEP.name else "adamw",
    )


def plan_of(setup: Setup) -> Plans:
    """The setup's plan as columns of one entry, so that one plan and a search of thousands share their formulas."""
    return plans_of([setup])


def plans_of(setups: Sequence[Setup]) -> Plans:
    entries = [_entries(setup) for setup in setups]
    return Plans(**{name: np.array([each[name] for each in entries]) for name in Plans.__slots__})


def _entries(setup: Setup) -> Mapping[str, Any]:
    layers = setup.layers_per_stage
    derived = {
        "num_micro_batches": setup.num_micro_batches,
        "first_stage_layers": layers[0],
        "last_stage_layers": layers[-1],
    }
    chosen = {name: KNOB[name].entry(setup.knob_value(name)) for name in Plans.__slots__ if name not in derived}
    return chosen | derived


def _stage_memories(setting: Setting, plans: Plans, work: Work, stages: StageGroup) -> tuple[StageMemory, ...]:
    """The memory of every stage that is listed, first to last."""
    memory = group_memory(PricedStage(PricedReplicas(setting, plans), work, stages))
    columns = {
        name: np.broadcast_to(getattr(memory, name), stages.layers.shape).tolist()
        for name in (*MEMORY_KINDS, "parameters")
    }
    return tuple(StageMemory(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True))


def executed_flops(setup: Setup, implementation: Implementation = TRISWEEP, done: DoneShares = ALL) -> int:
    """The FLOPs of a step over all devices, those that the trainer repeats included; see `hardware_flops`."""
    model, parallel, size = setup.model, setup.parallel, setup.batch.global_batch_size
    # The first of each chunk's layers, and every n-th after it, recompute something.
    chunks = [chunk for chunks in setup.chunk_ranges for chunk in chunks]
    recomputed = [layer for chunk in chunks for layer in chunk[:: parallel.recompute_every]]
    counted = hardware_flops(
        model,
        size,
        parallel.recompute,
        len(recomputed),
        done,
        num_dense_recomputed=sum(layer < model.num_dense_layers for layer in recomputed),
        selects_operators=implementation.selective_operators,
    )
    if implementation.name != TRISWEEP.name:
        return counted
    counted += repeated_flops(model, size, parallel, len(recomputed))
    # Of separate documents the last alone is left out, which is not counted.
    if parallel.recompute == "selective" and setup.cluster.device.kind == "cpu" and done.attended == 1.0:
        each = stopped_flops(model, size, parallel.tensor_parallel_size, drops=setup.dropout > 0)
        counted -= len(recomputed) * each
    return counted


def _estimate(
    setup: Setup, implementation: Implementation, step: StepColumns, index: int, stages: tuple[StageMemory, ...]
) -> Estimate:
    """The estimate of the setup whose step is at `index` of the columns."""
    model, batch, parallel = setup.model, setup.batch, setup.parallel
    capacities = [cluster.device.memory_bytes for cluster in setup.clusters_of_stages]
    # Devices may differ in memory, so that the worst stage is the one with the least to spare and not the fullest.
    worst = max(range(len(stages)), key=lambda stage: stages[stage].total_bytes - capacities[stage])
    capacity = capacities[worst]
    needed = model_flops(model, batch.global_batch_size)
    executed = executed_flops(setup, implementation)
    seconds, peak = float(step.total_seconds[index]), setup.peak_flops_per_second
    return Estimate(
        implementation=implementation.name,
        num_parameters=num_parameters(model),
        **flops_fields(needed, executed, seconds * parallel.world_size, peak),
        flops_formula=FLOPS_FORMULA,
        stages=stages,
        worst_stage=worst,
        peak_memory_bytes=stages[worst].total_bytes,
        memory_capacity_bytes=capacity,
        shortfall_bytes=max(0, stages[worst].total_bytes - capacity),
        step_terms=row_of(step, index),
        step_seconds=seconds,
        tokens_per_second=batch.global_batch_size * model.seq_length / seconds,
        blocks=block_rates(setup, seconds, [stage.total_bytes for stage in stages]),
    )
