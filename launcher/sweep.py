"""Carrying a sweep out: here, through Slurm, or on paper. The command line calls these three."""

from __future__ import annotations

from dataclasses import dataclass

from conf.schema import SlurmSpec
from launcher.capacity import this_machine
from launcher.folder_lock import locked
from launcher.job import run_in_slurm, run_on_this_machine
from launcher.local import LocalSweep
from launcher.local_jobs import LocalJobFunction
from launcher.progress import Progress
from launcher.resources import device_hours
from launcher.slurm import Request, SubmittedArray, requests, submit_trials
from launcher.slurm_executor import SlurmJob, require_sbatch
from launcher.snapshot import snapshot_code
from launcher.state import TrialState, reconcile, trial_states
from launcher.submission import runnable, to_run
from sweeps.submission import read_submission
from sweeps.trial import SweepFolder, SweepRecord, Trial

UNLIMITED = 1_000_000


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
    folder: SweepFolder,
    record: SweepRecord,
    *,
    time_limit_seconds: float | None,
    progress: Progress,
    retry_failed: bool = False,
    job: LocalJobFunction = run_on_this_machine,
) -> list[TrialState]:
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
    with locked(folder):
        folder.write_record(record)
        trials = to_run(folder, runnable(record), retry_failed=retry_failed, max_resubmits=UNLIMITED)
        if trials:
            code = snapshot_code(folder.code.absolute())
            sweep = LocalSweep(folder, record, this_machine(), code, time_limit_seconds, job)
            with progress:
                sweep.run(trials, progress)
        return trial_states(folder, record)


def submit(
    folder: SweepFolder,
    record: SweepRecord,
    slurm: SlurmSpec,
    *,
    retry_failed: bool = False,
    job: SlurmJob = run_in_slurm,
) -> SubmissionSummary:
    """Submit what has neither a result nor a live job, and return at once.

    Raises:
        UsageError: there is no sbatch, Slurm refuses, or another process works on the folder.
        ConfigError: the folder cannot be written, or an option of `slurm.extra_sbatch` is not free.
    """
    require_sbatch()
    with locked(folder):
        folder.write_record(record)
        reconcile(folder.trials_of(record))
        chosen = runnable(record)
        open_trials = to_run(folder, chosen, retry_failed=retry_failed, max_resubmits=slurm.max_resubmits)
        fresh = [trial for trial in open_trials if not _has_job(folder, trial)]
        arrays = submit_trials(folder, record, slurm, fresh, job) if fresh else []
    hours = sum(device_hours(trial.experiment, slurm) for trial in fresh if trial.experiment)
    num_live = len(open_trials) - len(fresh)
    return SubmissionSummary(tuple(arrays), len(fresh), len(chosen) - len(open_trials), num_live, hours)


def dry_run(folder: SweepFolder, record: SweepRecord, slurm: SlurmSpec) -> list[Request]:
    """Every array that a first `submit` would hand to sbatch, as text. Needs no Slurm and writes nothing."""
    return requests(folder, record, slurm, runnable(record))


def _has_job(folder: SweepFolder, trial: Trial) -> bool:
    """Its last job has not been found ended: `reconcile` wrote a measurement for every one that was."""
    trial_folder = folder.trial(trial.trial_id)
    submission = read_submission(trial_folder)
    return submission is not None and submission.executor == "slurm" and trial_folder.read_measurement() is None
