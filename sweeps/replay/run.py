"""One experiment on a made-up machine, as the measurement that a trial would leave."""

from __future__ import annotations

from conf.experiment import Experiment
from conf.units import GIBIBYTE
from sweeps.replay.machine import Machine, Truth
from train_core.costs.estimate import num_recomputed, plan_of, setting_of
from train_core.costs.flops import FLOPS_FORMULA, hardware_flops, model_flops
from train_core.costs.implementation import TRISWEEP, Implementation
from train_core.costs.parameters import num_parameters
from train_core.costs.terms import StepTime, row_of
from train_core.measurement import Breakdown, Measurement, Outcome, Performance, StepTerms

REPLAYED = "replayed on a made-up machine"
FINAL_LOSS = 0.0  # a replay trains nothing


def replayed(
    machine: Machine, experiment: Experiment, repeat: int = 0, implementation: Implementation = TRISWEEP
) -> Measurement:
    """How the experiment ends on the machine: with a rate, or out of memory.

    Args:
        repeat: which measurement of this experiment it is; each has its own noise.
    """
    truth = machine.truth(setting_of(experiment, implementation), plan_of(experiment))
    shortfall = float(truth.peak_memory_bytes[0]) - experiment.cluster.device.memory_bytes
    noise = machine.noise_of(f"{experiment.fingerprint} {repeat}")
    seconds = float(truth.step_seconds[0]) * noise
    ended = {"fingerprint": experiment.fingerprint, "started": 0.0, "ended": seconds * experiment.training.num_steps}
    if shortfall > 0:
        cause = f"{REPLAYED}: out of memory, {shortfall / GIBIBYTE:.1f} GiB over capacity"
        return Measurement.model_validate({**ended, "outcome": Outcome.OUT_OF_MEMORY, "cause": cause})
    performance = _performance(experiment, truth, noise)
    return Measurement.model_validate(
        {**ended, "outcome": Outcome.COMPLETED, "cause": "", "performance": dict(performance)}
    )


def _performance(experiment: Experiment, truth: Truth, noise: float) -> Performance:
    model, batch, devices = experiment.model, experiment.batch, experiment.parallel.world_size
    seconds = float(truth.step_seconds[0]) * noise
    needed = model_flops(model, batch.global_batch_size)
    executed = hardware_flops(model, batch.global_batch_size, experiment.parallel.recompute, num_recomputed(experiment))
    rate, peak = 1 / (seconds * devices), experiment.peak_flops_per_second
    return Performance(
        step_seconds=seconds,
        step_seconds_min=seconds,
        step_seconds_max=seconds,
        num_timed_steps=max(1, experiment.training.num_steps - experiment.training.num_warmup_steps),
        num_devices=devices,
        tokens_per_second=batch.global_batch_size * model.seq_length / seconds,
        model_flops=needed,
        hardware_flops=executed,
        flops_formula=FLOPS_FORMULA,
        model_flops_per_second_per_device=needed * rate,
        hardware_flops_per_second_per_device=executed * rate,
        peak_flops_per_second=peak,
        peak_source=REPLAYED,
        model_flops_utilization=needed * rate / peak,
        hardware_flops_utilization=executed * rate / peak,
        peak_memory_bytes=(_reported_bytes(experiment, truth),),
        losses=(FINAL_LOSS,) * experiment.training.num_steps,
        final_loss=FINAL_LOSS,
        num_parameters=num_parameters(model),
        breakdown=_breakdown(row_of(truth.terms, 0), noise) if experiment.profile.breakdown else None,
    )


def _reported_bytes(experiment: Experiment, truth: Truth) -> int:
    """What a trial reports: on a GPU the tensors alone, on a CPU the memory of the whole process."""
    cluster = experiment.cluster
    return int(truth.peak_memory_bytes[0]) - (cluster.reserved_memory_bytes if cluster.device.kind == "gpu" else 0)


def _breakdown(terms: StepTime, noise: float) -> Breakdown:
    """The terms as one rank would see them: its own work, and what it waits for."""
    slowest = StepTerms(
        compute_seconds=terms.compute_seconds * noise,
        tensor_seconds=terms.tensor_seconds * noise,
        pipeline_wait_seconds=(terms.pipeline_seconds + terms.bubble_seconds) * noise,
        data_seconds=terms.data_seconds * noise,
        synchronization_seconds=terms.jitter_seconds * noise,
        optimizer_seconds=terms.optimizer_seconds * noise,
    )
    return Breakdown(ranks=(slowest,), slowest_rank=0)
