"""The long run as one Slurm job, which saves and requeues itself before its time limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from conf.errors import UsageError
from conf.sites import SlurmSpec
from launcher.executor import RUN_IN_SLURM, FolderWork
from launcher.slurm.executor import SlurmExecutor, require_sbatch
from launcher.slurm.own_jobs import standings
from launcher.slurm.query import SlurmSilent
from launcher.slurm.sbatch import require_time_to_save
from launcher.snapshot import snapshot_code
from launcher.trainings.begun import LongRun
from sweeps.folder.submission import read_submission, shape_of, write_submission
from train_core.process.lock import hold_lock
from train_core.trial_folder import TrialFolder


class LiveJob(NamedTuple):
    """The job that trains in a folder; `state` is Slurm's word for how it stands."""

    job_id: str
    state: str

    def in_the_way(self, folder: TrialFolder) -> UsageError:
        """Return the error that says why another trainer cannot work in its folder now."""
        problem = f"Job {self.job_id} ({self.state}) trains in {folder.path}"
        return UsageError(problem, f"Wait for it, or end it with `scancel {self.job_id}`.")


def live_job(folder: TrialFolder) -> LiveJob | None:
    """The job that trains in this folder, queued or running; None where there is none.

    Raises:
        UsageError: Slurm does not answer, or cannot know the last job here, so that a second one might join it.
    """
    submission = read_submission(folder)
    if submission is None or submission.executor != "slurm":
        return None
    try:
        (job,) = standings([submission])
    except SlurmSilent:
        raise UsageError(f"Slurm does not say how job {submission.job_id} stands", "Try again in a minute.") from None
    if job.elsewhere:
        raise UsageError(f"{folder.path} has a job already, and {job.elsewhere}", "Give this command there.")
    if job.submission != submission:
        write_submission(folder, job.submission)
    number = job.submission.job_id
    return LiveJob(number, job.state.name) if number and job.state is not None and job.state.is_live else None


@contextmanager
def keep_others_out(folder: TrialFolder) -> Iterator[LiveJob | None]:
    """Keep others from starting a trainer in this folder, until there is a job to be seen or training here has ended.

    Yields:
        The job that trains in the folder already.

    Raises:
        UsageError: another process starts one, or trains on this machine; or Slurm does not answer.
    """
    with hold_lock(folder.starting_lock):
        yield live_job(folder)


def submit_long_run(run: LongRun, slurm: SlurmSpec) -> str:
    """Submit and return the job's id; what a failed attempt left is forgotten, its checkpoints are not.

    Raises:
        UsageError: there is no sbatch here, or Slurm refuses the request.
        ConfigError: the time limit is too short.
    """
    require_time_to_save(slurm)
    require_sbatch()
    folder = run.folder
    # Read before the measurement is removed, which tells whether the last attempt lost its node. It is removed because
    # Slurm is asked only about jobs that have left none.
    attempt = run.read().next_attempt
    folder.measurement.unlink(missing_ok=True)
    code, logs = snapshot_code(folder.code.absolute()), folder.submitit.absolute()
    executor = SlurmExecutor(slurm, f"trisweep-{folder.path.name}", code, logs, requeues=True)
    return executor.submit(RUN_IN_SLURM, [FolderWork(folder, attempt)], shape_of(run.experiment))
