"""What the folders say about each trial of a sweep, as typed values. Everything else in this package starts here."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from sweeps.trial import SweepFolder, SweepRecord, Trial
from train_core.job.failures import first_cause
from train_core.measurement import Measurement, Outcome, Performance, StepMetrics
from train_core.trial_folder import TrialFolder


@dataclass(frozen=True)
class TrialResult:
    """One trial and how it stands.

    Attributes:
        outcome: None when the sweep left the trial out (beyond `sweep.max_trials`).
        cause: one sentence for people; empty when there is nothing to explain.
        steps: the optimizer steps on record, finished or not.
        heartbeat_age_seconds: since the last sign of life; None before the first.
        quarantined: corrupt measurement files that were set aside.
    """

    trial: Trial
    outcome: Outcome | None
    cause: str
    measurement: Measurement | None
    steps: tuple[StepMetrics, ...]
    heartbeat_age_seconds: float | None
    quarantined: tuple[Path, ...]

    @property
    def performance(self) -> Performance | None:
        return self.measurement.performance if self.measurement else None

    @property
    def label(self) -> str:
        """The layout in short where there is one, otherwise the values of the point."""
        if self.trial.experiment:
            return self.trial.experiment.label
        return " ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in self.trial.point.items())


def read_results(folder: SweepFolder, record: SweepRecord) -> list[TrialResult]:
    """Every trial of the record, in its order. Corrupt measurements are set aside and say so; the rest is unharmed."""
    return [read_result(folder.trial(trial.trial_id), trial) for trial in record.trials]


def ranked(results: list[TrialResult]) -> list[TrialResult]:
    """The measured ones, most model FLOP/s per device first."""
    measured = [result for result in results if result.performance]
    return sorted(measured, key=_negative_rate)


def _negative_rate(result: TrialResult) -> float:
    return -result.performance.model_flops_per_second_per_device if result.performance else 0.0


def read_result(files: TrialFolder, trial: Trial) -> TrialResult:
    measurement = files.read_measurement() if trial.experiment else None
    quarantined = tuple(files.quarantined())
    foreign = measurement is not None and not _belongs(measurement, trial)
    outcome, cause = _standing(files, trial, None if foreign else measurement)
    if foreign and not cause:
        cause = f"{files.measurement.name} belongs to another experiment and is ignored; the next run replaces it"
    return TrialResult(
        trial=trial,
        outcome=outcome,
        cause=cause,
        measurement=None if foreign else measurement,
        steps=() if foreign else tuple(files.read_metrics()),
        heartbeat_age_seconds=_age_seconds(files.heartbeat),
        quarantined=quarantined,
    )


def _belongs(measurement: Measurement, trial: Trial) -> bool:
    return trial.experiment is not None and measurement.fingerprint == trial.experiment.fingerprint


def _standing(files: TrialFolder, trial: Trial, measurement: Measurement | None) -> tuple[Outcome | None, str]:
    """The outcome and its cause, from the surest witness to the weakest."""
    if measurement:
        return measurement.outcome, measurement.cause
    if trial.infeasible_reason is not None:
        return Outcome.INFEASIBLE, trial.infeasible_reason
    if not trial.selected:
        return None, "left out: beyond sweep.max_trials"
    if failure := first_cause(files.read_failures()):
        return failure.outcome, failure.cause
    if set_aside := _set_aside_since_heartbeat(files):
        return Outcome.PENDING, f"measurement.json was corrupt and is now {set_aside.name}; the next run measures again"
    alive = files.heartbeat.exists() or files.metrics.exists()
    return (Outcome.RUNNING if alive else Outcome.PENDING), ""


def _set_aside_since_heartbeat(files: TrialFolder) -> Path | None:
    """The newest quarantined file, unless a later attempt already shows signs of life."""
    corrupt = max(files.quarantined(), key=lambda path: path.stat().st_ctime, default=None)
    if corrupt is None or not files.heartbeat.exists():
        return corrupt
    return corrupt if corrupt.stat().st_ctime >= files.heartbeat.stat().st_mtime else None


def _age_seconds(heartbeat: Path) -> float | None:
    return max(0.0, time.time() - heartbeat.stat().st_mtime) if heartbeat.exists() else None
