"""One experiment on a made-up machine, as the measurement that a trial would leave, and the trial read with that."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.replay.machine import InventedMachine
from conf.plan.experiment import Experiment
from conf.units import GIBIBYTE
from costs.counts.flops import FLOPS_FORMULA, model_flops
from costs.counts.parameters import num_parameters
from costs.estimate import executed_flops, plan_of, setting_of
from costs.flops_rates import flops_fields
from costs.terms import StepTime, row_of
from costs.trainers import IMPLEMENTATIONS
from sweeps.folder.submission import Submission
from sweeps.reading import TrialReading
from sweeps.trial import Trial
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Breakdown, Measurement, Outcome, Performance, StepTerms

REPLAYED = "replayed on a made-up machine"
FINAL_LOSS = 0.0  # a replay trains nothing


def replay_trial(machine: InventedMachine, experiment: Experiment, repeat: int = 0) -> Measurement:
    """Return how the experiment ends on the machine: with a rate, or out of memory.

    Args:
        repeat: which measurement of this experiment it is; each has its own noise.
    """
    truth = machine.truth(setting_of(experiment), plan_of(experiment))
    noise = machine.noise_of(f"{experiment.fingerprint} {repeat}")
    seconds, peak = float(truth.step_seconds[0]) * noise, float(truth.peak_memory_bytes[0])
    terms = _breakdown(row_of(truth.terms, 0), noise) if experiment.profile.breakdown else None
    return as_measured(experiment, seconds, peak, terms)


def as_measured(
    experiment: Experiment, step_seconds: float, peak_memory_bytes: float, breakdown: Breakdown | None = None
) -> Measurement:
    """The measurement of a trial whose steps take so long, and that needs so many bytes on its fullest device."""
    over = peak_memory_bytes - experiment.cluster.device.memory_bytes
    ended = {
        "fingerprint": experiment.fingerprint,
        "started": 0.0,
        "ended": step_seconds * experiment.training.num_steps,
    }
    if over > 0:
        over_gib = round(over / GIBIBYTE, 1)  # real programs name it in few digits, too
        cause = f"{REPLAYED}: out of memory, {over_gib:.1f} GiB over capacity"
        lacked = {"cause": cause, "over_capacity_bytes": over_gib * GIBIBYTE}
        return Measurement.model_validate({**ended, **lacked, "outcome": Outcome.OUT_OF_MEMORY})
    performance = _performance(experiment, step_seconds, peak_memory_bytes, breakdown)
    return Measurement.model_validate(
        {**ended, "outcome": Outcome.COMPLETED, "cause": "", "performance": dict(performance)}
    )


def _performance(experiment: Experiment, seconds: float, peak: float, breakdown: Breakdown | None) -> Performance:
    model, batch, devices = experiment.model, experiment.batch, experiment.parallel.world_size
    needed = model_flops(model, batch.global_batch_size)
    executed = executed_flops(experiment, IMPLEMENTATIONS[experiment.trainer.costs_of])
    return Performance(
        step_seconds=seconds,
        step_seconds_min=seconds,
        step_seconds_max=seconds,
        num_timed_steps=max(1, experiment.training.num_steps - experiment.training.num_warmup_steps),
        num_devices=devices,
        tokens_per_second=batch.global_batch_size * model.seq_length / seconds,
        **flops_fields(needed, executed, seconds * devices, experiment.peak_flops_per_second),
        flops_formula=FLOPS_FORMULA,
        peak_source=REPLAYED,
        peak_memory_bytes=(_reported_bytes(experiment, peak),),
        losses=(FINAL_LOSS,) * experiment.training.num_steps,
        final_loss=FINAL_LOSS,
        num_parameters=num_parameters(model),
        breakdown=breakdown,
    )


def _reported_bytes(experiment: Experiment, peak: float) -> int:
    """Return the memory that a trial reports: on a GPU the tensors alone, on a CPU that of the whole process."""
    cluster = experiment.cluster
    return int(peak) - (cluster.reserved_memory_bytes if cluster.device.kind == "gpu" else 0)


def _breakdown(terms: StepTime, noise: float) -> Breakdown:
    """The terms as one rank would see them: its own work, and what it waits for."""
    slowest = StepTerms(
        compute_seconds=terms.compute_seconds * noise,
        tensor_seconds=terms.tensor_seconds * noise,
        pipeline_wait_seconds=(terms.pipeline_seconds + terms.bubble_seconds) * noise,
        data_seconds=terms.data_seconds * noise,
        synchronization_seconds=terms.waiting_seconds * noise,
        optimizer_seconds=terms.optimizer_seconds * noise,
    )
    return Breakdown(ranks=(slowest,), slowest_rank=0)


NOWHERE = TrialFolder(Path("replayed"))


@dataclass(frozen=True, kw_only=True)
class ReplayedReading(TrialReading):
    """The state of a replayed trial, for which nothing is read from a disk.

    Attributes:
        left: what the machine measured; None while the trial runs.
    """

    left: Measurement | None

    @cached_property
    def submission(self) -> Submission | None:
        return None

    @cached_property
    def _stored_measurement(self) -> Measurement | None:
        return self.left

    @cached_property
    def _listing(self) -> frozenset[str]:
        return frozenset()

    @cached_property
    def _judgement(self) -> tuple[Outcome | None, str]:
        if self.left is None:
            return Outcome.RUNNING, ""
        return self.left.outcome, self.left.cause


def replayed_reading(trial: Trial, ended: Measurement | None) -> ReplayedReading:
    """The reading of a trial that ended like this, or that runs."""
    return ReplayedReading(folder=NOWHERE, experiment=trial.experiment, trial=trial, left=ended)


def unplanned_trial(trial_id: str, experiment: Experiment) -> Trial:
    """A trial of an experiment that no sweep has planned."""
    return Trial(
        trial_id=trial_id,
        point={},
        experiment=experiment,
        selected=True,
    )
