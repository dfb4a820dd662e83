"""Submitting trials to Slurm: one job array per resource shape, recorded in every trial folder, and return."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import UsageError
from conf.schema import SlurmSpec
from launcher.job import run_in_slurm
from launcher.resources import by_shape, device_hours, split
from launcher.sbatch import python_command, sbatch_parameters, sbatch_text
from launcher.slurm_cluster import this_cluster
from launcher.snapshot import snapshot_code
from sweeps.reading import TrialReading
from sweeps.submission import JobShape, Submission, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial
from train_core.trial_folder import TrialFolder

DEFAULT_MAX_ARRAY_SIZE = 1001
"""Slurm's own default of MaxArraySize, for a dry run where no Slurm answers."""

SlurmJob = Callable[[str], object]


@dataclass(frozen=True)
class Request:
    """One job array (or, for a single trial, one job) as it would be submitted.

    Attributes:
        sbatch: the text that sbatch gets.
        device_hours: of all its trials, if each runs into the time limit.
    """

    shape: JobShape
    trials: tuple[Trial, ...]
    sbatch: str
    device_hours: float


@dataclass(frozen=True)
class SubmittedArray:
    """Attributes:
    job_id: Slurm's id of the array.
    """

    job_id: str
    shape: JobShape
    trial_ids: tuple[str, ...]


def requests(sweep: Sweep, slurm: SlurmSpec, trials: Sequence[Trial]) -> list[Request]:
    """What `submit_trials` would submit. Writes nothing and needs no Slurm.

    The code's folder appears as `SWEEP/code/SNAPSHOT`, because its name follows from what is copied there.
    """
    code = sweep.folder.code.absolute() / "SNAPSHOT"
    return [
        Request(
            shape,
            tuple(part),
            sbatch_text(slurm, _parameters(slurm, shape, code, sweep), logs_folder(sweep.folder), len(part)),
            sum(device_hours(trial.experiment, slurm) for trial in part if trial.experiment),
        )
        for shape, part in _arrays(slurm, trials)
    ]


def submit_trials(
    sweep: Sweep, slurm: SlurmSpec, readings: Sequence[TrialReading], job: SlurmJob = run_in_slurm
) -> list[SubmittedArray]:
    """Submit the trials that were read and return at once; every trial folder then names its job.

    Args:
        job: what each task of a job calls with the trial folder.

    Raises:
        UsageError: there is no sbatch here, or Slurm refuses the request.
    """
    require_sbatch()
    arrays = _arrays(slurm, [reading.trial for reading in readings])
    attempts = {reading.name: reading.next_attempt for reading in readings}
    code = snapshot_code(sweep.folder.code.absolute())
    submitted = []
    for shape, part in arrays:
        parameters = _parameters(slurm, shape, code, sweep)
        submitted.append(_submit_array(sweep, part, attempts, shape, parameters, python_command(slurm), job))
    return submitted


def require_sbatch() -> None:
    if missing := [name for name in ("sbatch", "srun") if not shutil.which(name)]:
        remedy = "Run this on a Slurm login node, or leave out cluster=NAME to measure on this machine."
        raise UsageError(f"Slurm was asked for, but there is no {missing[0]} on the PATH", remedy)


def logs_folder(folder: SweepFolder) -> Path:
    """Where submitit keeps what it hands to the jobs, and their output."""
    return folder.submitit.absolute()


def max_array_size(slurm: SlurmSpec) -> int:
    """Elements that one array may have: as configured, else as Slurm says, else Slurm's default."""
    return slurm.max_array_size or this_cluster().max_array_size or DEFAULT_MAX_ARRAY_SIZE


def _arrays(slurm: SlurmSpec, trials: Sequence[Trial]) -> list[tuple[JobShape, list[Trial]]]:
    size = max_array_size(slurm) if trials else 1
    return [(shape, part) for shape, group in by_shape(trials).items() for part in split(group, size)]


def _parameters(slurm: SlurmSpec, shape: JobShape, code: Path, sweep: Sweep) -> dict[str, Any]:
    return sbatch_parameters(slurm, shape, code, f"trisweep-{sweep.record.name}")


def _submit_array(
    sweep: Sweep,
    trials: Sequence[Trial],
    attempts: Mapping[str, tuple[int, int]],
    shape: JobShape,
    parameters: dict[str, Any],
    python: str,
    job: SlurmJob,
) -> SubmittedArray:
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError

    trial_folders = [sweep.prepare(trial) for trial in trials]
    executor = SlurmExecutor(logs_folder(sweep.folder), max_num_timeout=0, python=python)
    executor.update_parameters(**parameters)
    try:
        with executor.batch():
            jobs = [executor.submit(job, str(trial_folder.path)) for trial_folder in trial_folders]
    except FailedJobError as refusal:
        remedy = "Look at the request with --dry-run, and correct the settings under slurm."
        raise UsageError(
            f"Slurm refused the job array of shape {shape}: {' '.join(str(refusal).split())}", remedy
        ) from None
    for trial_folder, submitted in zip(trial_folders, jobs, strict=True):
        attempt, lost_nodes = attempts[trial_folder.path.name]
        write_down(trial_folder, logs_folder(sweep.folder), submitted.job_id, shape, attempt, lost_nodes)
    master = jobs[0].job_id.split("_")[0]
    return SubmittedArray(master, shape, tuple(trial.trial_id for trial in trials))


def write_down(
    trial_folder: TrialFolder, logs: Path, job_id: str, shape: JobShape, attempt: int, lost_nodes: int
) -> None:
    """Let the trial folder name its job, and show the job's output."""
    submission = Submission(
        executor="slurm",
        job_id=job_id,
        hostname=socket.gethostname(),
        attempt=attempt,
        lost_nodes=lost_nodes,
        submitted=time.time(),
        shape=shape,
        output=str(logs / f"{job_id}_%t_log.out"),
        error=str(logs / f"{job_id}_%t_log.err"),
    )
    write_submission(trial_folder, submission)
    _link_logs(trial_folder.logs, submission)


def _link_logs(logs: Path, submission: Submission) -> None:
    """Let the trial folder show the job's own output; the job appends to files that exist."""
    for target in (submission.output_of(0), submission.error_of(0)):
        target.touch()
        link = logs / f"slurm{target.suffix}"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
