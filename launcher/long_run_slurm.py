"""The long run as one Slurm job, which saves and requeues itself before its time limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from conf.errors import UsageError
from conf.schema import SlurmSpec
from launcher.job import run_in_slurm
from launcher.sbatch import python_command, require_time_to_save, sbatch_parameters
from launcher.slurm import require_sbatch, write_down
from launcher.slurm_query import SlurmSilent, query_jobs
from launcher.snapshot import snapshot_code
from launcher.trainings import LongRun
from sweeps.submission import read_submission, shape_of
from train_core.job.supervisor import held
from train_core.trial_folder import TrialFolder


class LiveJob(NamedTuple):
    """`state` is Slurm's word."""

    job_id: str
    state: str


def live_job(folder: TrialFolder) -> LiveJob | None:
    """The job that trains in this folder, queued or running; None where there is none.

    Raises:
        UsageError: Slurm does not answer, so that a second job might join the first.
    """
    submission = read_submission(folder)
    if submission is None or submission.executor != "slurm":
        return None
    try:
        state = query_jobs([submission.job_id]).get(submission.job_id)
    except SlurmSilent:
        raise UsageError(f"Slurm does not say how job {submission.job_id} stands", "Try again in a minute.") from None
    return LiveJob(submission.job_id, state.name) if state is not None and state.is_live else None


@contextmanager
def starting(folder: TrialFolder) -> Iterator[LiveJob | None]:
    """Keep others from starting a trainer in this folder, until there is a job to be seen or training here has ended.

    Yields:
        The job that trains in the folder already.

    Raises:
        UsageError: another process starts one, or trains on this machine; or Slurm does not answer.
    """
    with held(folder.starting_lock):
        yield live_job(folder)


def submit_long_run(run: LongRun, slurm: SlurmSpec) -> str:
    """Submit and return the job's id; what a failed attempt left is forgotten, its checkpoints are not.

    Raises:
        UsageError: there is no sbatch here, or Slurm refuses the request.
        ConfigError: the time limit is too short.
    """
    require_time_to_save(slurm)
    require_sbatch()
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError

    folder, shape = run.folder, shape_of(run.experiment)
    attempt, lost_nodes = run.read().next_attempt
    folder.measurement.unlink(missing_ok=True)
    folder.logs.mkdir(parents=True, exist_ok=True)
    logs = folder.submitit.absolute()
    executor = SlurmExecutor(logs, max_num_timeout=0, python=python_command(slurm))
    code = snapshot_code(folder.code.absolute())
    executor.update_parameters(**sbatch_parameters(slurm, shape, code, f"trisweep-{folder.path.name}", requeues=True))
    try:
        job = executor.submit(run_in_slurm, str(folder.path.absolute()))
    except FailedJobError as refusal:
        remedy = "Correct the settings under slurm."
        raise UsageError(f"Slurm refused the job of {shape} tasks: {' '.join(str(refusal).split())}", remedy) from None
    write_down(folder, logs, job.job_id, shape, attempt, lost_nodes)
    return str(job.job_id)
