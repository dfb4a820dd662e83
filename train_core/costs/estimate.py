"""`estimate(experiment)`: one optimizer step, computed on paper."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from conf.experiment import Experiment
from conf.schema import Frozen
from train_core.costs.flops import FLOPS_FORMULA, hardware_flops, model_flops
from train_core.costs.memory import StageMemory, stage_memories
from train_core.costs.parameters import num_parameters
from train_core.costs.step_time import StepTime, step_time


class Estimate(Frozen):
    """What one step should cost. Names are shared with `measurement.Performance`; every number is a prediction.

    Attributes:
        stages: memory of one rank of every pipeline stage.
        peak_memory_bytes: the worst stage's.
        memory_capacity_bytes: what one device has.
        shortfall_bytes: by how much the worst stage does not fit; 0 when it fits.
        step_terms: where step_seconds goes.
    """

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

    @property
    def fits(self) -> bool:
        return self.shortfall_bytes == 0


def estimate(experiment: Experiment) -> Estimate:
    """The step of this trainer for `experiment`, without devices."""
    model, batch, parallel = experiment.model, experiment.batch, experiment.parallel
    stages = stage_memories(experiment)
    worst = max(range(len(stages)), key=lambda stage: stages[stage].total_bytes)
    capacity = experiment.cluster.device.memory_bytes
    needed = model_flops(model, batch.global_batch_size)
    executed = hardware_flops(model, batch.global_batch_size, parallel.recompute)
    terms = step_time(experiment)
    seconds, peak = terms.total_seconds, experiment.peak_flops_per_second
    rate = 1 / (seconds * parallel.world_size)
    return Estimate(
        num_parameters=num_parameters(model),
        model_flops=needed,
        hardware_flops=executed,
        flops_formula=FLOPS_FORMULA,
        stages=stages,
        worst_stage=worst,
        peak_memory_bytes=stages[worst].total_bytes,
        memory_capacity_bytes=capacity,
        shortfall_bytes=max(0, stages[worst].total_bytes - capacity),
        step_terms=terms,
        step_seconds=seconds,
        tokens_per_second=batch.global_batch_size * model.seq_length / seconds,
        model_flops_per_second_per_device=needed * rate,
        hardware_flops_per_second_per_device=executed * rate,
        peak_flops_per_second=peak,
        model_flops_utilization=needed * rate / peak,
        hardware_flops_utilization=executed * rate / peak,
    )
