"""How every trial of a sweep stands, read from disk and, for those that went silent, from Slurm."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from launcher.local_jobs import is_running_here
from launcher.own_jobs import standings
from launcher.silent_jobs import is_settled, tail, verdict
from launcher.slurm_query import JobState, SlurmSilent
from sweeps.submission import Submission, read_submission, write_submission
from sweeps.trial import SweepFolder, SweepRecord, Trial
from train_core.measurement import Measurement, Outcome, StepMetrics
from train_core.trial_folder import TrialFolder

LOG_SUFFIXES = (".out", ".err", ".log")
INTERRUPTED = "its last attempt was interrupted; the next sweep runs it again"
STOPPED = "it was stopped; `trisweep train --from-best` goes on from its last checkpoint"
FORGOTTEN_SECONDS = 60.0
"""A job that is younger may not have reached the accounting yet."""


@dataclass(frozen=True)
class TrialState:
    """How one trial stands.

    Attributes:
        outcome: None for a point that was left out of the measurement.
        cause: why it failed, cannot run, or waits; empty when there is nothing to say.
        scheduler_state: Slurm's word for its job, where Slurm was asked.
        num_steps_done: optimizer steps so far.
        step_seconds: of the last step; likewise `loss` and `model_flops_per_second_per_device`, which of a completed
            trial are its measurement.
        log: where to look first.
    """

    trial_id: str
    outcome: Outcome | None
    cause: str
    failing_rank: int | None
    traceback: str | None
    job_id: str | None
    scheduler_state: str | None
    attempt: int
    num_steps_done: int
    num_steps: int
    step_seconds: float | None
    model_flops_per_second_per_device: float | None
    loss: float | None
    last_log_line: str
    log: Path | None
    started: float | None
    ended: float | None
    quarantined: tuple[Path, ...]


def reconcile(folders: Iterable[TrialFolder]) -> dict[Path, JobState]:
    """Ask Slurm about the jobs that left no measurement, and write the outcome of those that have ended for good.

    A job that is queued, requeued, suspended or held is not ended; nor is one that ended a moment ago and whose files
    may still appear. Where Slurm does not answer, nothing is concluded.

    Returns:
        Slurm's states of the jobs it was asked about, by the path of the folder.
    """
    silent = [(folder, submission) for folder in folders if (submission := _silent_in_slurm(folder))]
    try:
        told = standings([submission for _, submission in silent])
    except SlurmSilent:
        return {}
    for (folder, before), job in zip(silent, told, strict=True):
        if job.submission != before and read_submission(folder) == before:
            write_submission(folder, job.submission)
        is_forgotten = job.is_unknown and time.time() - before.submitted > FORGOTTEN_SECONDS
        if is_settled(job.state) if job.state else is_forgotten:
            _conclude(folder, job.submission, job.state)
    return {folder.path: job.state for (folder, _), job in zip(silent, told, strict=True) if job.state}


def _silent_in_slurm(folder: TrialFolder) -> Submission | None:
    """The job that was asked for and has left no measurement."""
    submission = read_submission(folder)
    is_silent = submission is not None and submission.executor == "slurm" and folder.read_measurement() is None
    return submission if is_silent else None


def _conclude(folder: TrialFolder, submission: Submission, state: JobState | None) -> None:
    """Unless the job spoke, or was replaced, while Slurm was being asked."""
    if folder.read_measurement() is None and read_submission(folder) == submission:
        folder.write_verdict(verdict(folder, submission, state))


def trial_states(
    folder: SweepFolder, record: SweepRecord, jobs: dict[Path, JobState] | None = None
) -> list[TrialState]:
    """All trials in the order of the record. Reads the disk only.

    Args:
        jobs: what `reconcile` returned, if it was called.
    """
    pairs, known = zip(folder.trials_of(record), record.trials, strict=True), jobs or {}
    return [trial_state(files, trial, known.get(files.path)) for files, trial in pairs]


def trial_state(folder: TrialFolder, trial: Trial, job: JobState | None = None) -> TrialState:
    """How one trial stands; `job` is Slurm's word, if it was asked."""
    submission, measurement, steps = read_submission(folder), folder.read_measurement(), folder.read_metrics()
    last = steps[-1] if steps else None
    performance = measurement.performance if measurement else None
    log, outcome = _log(folder, submission, measurement), _outcome(folder, trial, submission, measurement, job)
    return TrialState(
        trial_id=trial.trial_id,
        outcome=outcome,
        cause=_cause(folder, trial, measurement)
        or (_interruption(submission, last) if outcome is Outcome.PENDING else ""),
        failing_rank=measurement.failing_rank if measurement else None,
        traceback=measurement.traceback if measurement else None,
        job_id=submission.job_id if submission else None,
        scheduler_state=job.name if job else None,
        attempt=submission.attempt if submission else 0,
        num_steps_done=last.step if last else 0,
        num_steps=trial.experiment.training.num_steps if trial.experiment else 0,
        step_seconds=performance.step_seconds if performance else _of_step(last, "step_seconds"),
        model_flops_per_second_per_device=performance.model_flops_per_second_per_device
        if performance
        else _of_step(last, "model_flops_per_second_per_device"),
        loss=performance.final_loss if performance else _of_step(last, "loss"),
        last_log_line=_last_line(log),
        log=log,
        started=measurement.started if measurement else (submission.submitted if submission else None),
        ended=measurement.ended if measurement else None,
        quarantined=tuple(folder.quarantined()),
    )


def _of_step(step: StepMetrics | None, name: str) -> float | None:
    return None if step is None else getattr(step, name)


def _outcome(
    folder: TrialFolder,
    trial: Trial,
    submission: Submission | None,
    measurement: Measurement | None,
    job: JobState | None,
) -> Outcome | None:
    if measurement is not None:
        return measurement.outcome
    if trial.infeasible_reason is not None:
        return Outcome.INFEASIBLE
    if not trial.selected:
        return None
    if submission is None or submission.executor == "local":
        return Outcome.RUNNING if is_running_here(folder, submission) else Outcome.PENDING
    if job is not None:
        return Outcome.PENDING if job.is_waiting else Outcome.RUNNING
    return Outcome.RUNNING if folder.metrics.exists() else Outcome.PENDING


def _cause(folder: TrialFolder, trial: Trial, measurement: Measurement | None) -> str:
    if measurement is not None:
        return measurement.cause
    if trial.infeasible_reason is not None:
        return trial.infeasible_reason
    if corrupt := folder.quarantined():
        return f"its measurement was corrupt and has been put aside as {corrupt[-1].name}"
    return ""


def _interruption(submission: Submission | None, last: StepMetrics | None) -> str:
    """Of a trial that waits for nobody; a training on this machine has no job."""
    if submission is None:
        return STOPPED if last else ""
    return INTERRUPTED if submission.executor == "local" else ""


def _log(folder: TrialFolder, submission: Submission | None, measurement: Measurement | None) -> Path | None:
    """The failing rank's output if there is one, else the newest log that says something."""
    if submission and measurement and measurement.failing_rank is not None:
        rank = measurement.failing_rank
        for path in (folder.logs / f"rank-{rank}.log", submission.error_of(rank)):
            if path.exists():
                return path
    logs = [path for path in folder.logs.glob("*") if path.suffix in LOG_SUFFIXES and path.exists()]
    spoken = [path for path in logs if path.stat().st_size]
    return max(spoken, key=lambda path: path.stat().st_mtime, default=None)


def _last_line(log: Path | None) -> str:
    """submitit's own remarks say nothing about the trial."""
    lines = [line.strip() for line in tail(log).splitlines()] if log else []
    return next((line for line in reversed(lines) if line and not line.startswith("submitit ")), "")
