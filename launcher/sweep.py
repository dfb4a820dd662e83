"""Three ways to carry a sweep out: on this machine, through Slurm, or only on paper as a dry run."""

from __future__ import annotations

from dataclasses import dataclass

from conf.sites import SlurmSpec
from launcher.by_name import RUN_IN_SLURM, RUN_ON_THIS_MACHINE
from launcher.capacity import this_machine
from launcher.folder_lock import locked
from launcher.local import LocalSweep
from launcher.local_jobs import LocalJobFunction
from launcher.progress import Progress
from launcher.resources import device_hours
from launcher.retries import RetryRule
from launcher.slurm import Request, SubmittedArray, requests, submit_trials
from launcher.slurm_executor import SlurmJob, require_sbatch
from launcher.snapshot import snapshot_code
from launcher.state import reconciled, seen_here
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep

UNLIMITED = 1_000_000
"""The limit of resubmissions guards against a cluster's bad nodes. This one machine needs no such guard."""


@dataclass(frozen=True)
class SubmissionSummary:
    """What `submit` did.

    Attributes:
        num_kept: trials with a result that stands.
        num_live: trials whose job was queued or running already.
        device_hours: of the submitted trials, if each runs into its time limit.
    """

    arrays: tuple[SubmittedArray, ...]
    num_submitted: int
    num_kept: int
    num_live: int
    device_hours: float


def run_here(
    sweep: Sweep,
    *,
    time_limit_seconds: float | None,
    progress: Progress,
    retry_failed: bool = False,
    job: LocalJobFunction = RUN_ON_THIS_MACHINE,
) -> list[TrialReading]:
    """Run on this machine what has no result yet, and return when all has ended. Running it again continues.

    Args:
        time_limit_seconds: of each trial.
        retry_failed: run again what failed or timed out.
        job: what runs one trial, given its folder, its devices and the time limit.

    Raises:
        UsageError: another process works on the folder.
        ConfigError: the folder cannot be written.
        KeyboardInterrupt: a signal came; the jobs have been ended, and the same call continues.
    """
    with locked(sweep.folder):
        sweep.folder.write_record(sweep.record)
        readings = [sweep.read_trial(trial) for trial in sweep.runnable]
        rule = RetryRule(UNLIMITED, retry_failed=retry_failed)
        to_run = [each for each in readings if rule.allows(each)]
        if to_run:
            code = snapshot_code(sweep.folder.code.absolute())
            with progress:
                here = LocalSweep(sweep, this_machine(), code, time_limit_seconds, job)
                here.run([reading.trial for reading in to_run], progress)
        return [seen_here(reading) for reading in sweep.read()]


def submit(
    sweep: Sweep,
    slurm: SlurmSpec,
    *,
    retry_failed: bool = False,
    job: SlurmJob = RUN_IN_SLURM,
) -> SubmissionSummary:
    """Submit what has neither a result nor a live job, and return at once.

    Raises:
        UsageError: there is no sbatch, Slurm refuses, or another process works on the folder.
        ConfigError: the folder cannot be written, or an option of `slurm.extra_sbatch` is not free.
    """
    require_sbatch()
    with locked(sweep.folder):
        sweep.folder.write_record(sweep.record)
        chosen = reconciled(sweep.read_trial(trial) for trial in sweep.runnable)
        rule = RetryRule(slurm.max_resubmits, retry_failed=retry_failed)
        to_run = [each for each in chosen if rule.allows(each)]
        # A job that Slurm has, or may have, may still bring a result: its trial is not submitted a second time.
        fresh = [reading for reading in to_run if not reading.awaits_slurm]
        arrays = submit_trials(sweep, slurm, fresh, job) if fresh else []
    hours = sum(device_hours(reading.experiment, slurm) for reading in fresh if reading.experiment)
    num_live = len(to_run) - len(fresh)
    return SubmissionSummary(tuple(arrays), len(fresh), len(chosen) - len(to_run), num_live, hours)


def dry_run(sweep: Sweep, slurm: SlurmSpec) -> list[Request]:
    """Every array that a first `submit` would hand to sbatch, as text. Needs no Slurm and writes nothing."""
    return requests(sweep, slurm, sweep.runnable)
