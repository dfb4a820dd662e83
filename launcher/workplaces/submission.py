"""Submitting trials to Slurm: one job array per resource shape, recorded in every trial folder, and return."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conf.errors import UsageError
from conf.types.sites import SlurmSpec
from launcher.control.attempts import bad_nodes, nodes_to_avoid
from launcher.executor import RUN_IN_SLURM, FolderWork
from launcher.slurm.executor import SlurmExecutor, SlurmJob, TooManyJobs, require_sbatch
from launcher.slurm.pbs_executor import PbsExecutor, require_pbs
from launcher.slurm.resources import JobArray, device_hours, job_arrays
from launcher.slurm.sbatch import require_time_to_save
from launcher.snapshot import snapshot_code
from sweeps.folder.submission import JobShape
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial


@dataclass(frozen=True)
class JobRequest:
    """One job array, one job of a single trial, or one allocation, as it would be submitted.

    Attributes:
        sbatch: the text that sbatch gets.
        device_hours: of all that runs in it, if it runs into the time limit.
        trials: of an array or a job; an allocation chooses its own.
    """

    shape: JobShape
    sbatch: str
    device_hours: float
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class SubmittedArray:
    """A job array that Slurm has taken, and its trials.

    Attributes:
        job_id: Slurm's id of the array.
    """

    job_id: str
    shape: JobShape
    trial_ids: tuple[str, ...]


def requests(sweep: Sweep, slurm: SlurmSpec, trials: Sequence[Trial]) -> list[JobRequest]:
    """Return what `submit_trials` would submit. Writes nothing and needs no Slurm.

    The code's folder appears as `SWEEP/code/SNAPSHOT`, because its name follows from what is copied there.
    """
    executor = _executor(sweep, slurm, sweep.folder.code.absolute() / "SNAPSHOT")
    return [
        JobRequest(
            array.shape,
            _executor_for(executor, array).text(array.shape, len(array.trials)),
            sum(device_hours(trial.experiment, slurm) for trial in array.trials if trial.experiment),
            tuple(array.trials),
        )
        for array in job_arrays(slurm, trials, {})
    ]


def submit_trials(
    sweep: Sweep,
    slurm: SlurmSpec,
    readings: Sequence[TrialReading],
    job: SlurmJob = RUN_IN_SLURM,
    *,
    ended: Mapping[str, TrialReading],
) -> list[SubmittedArray]:
    """Submit the trials that were read and return at once; every trial folder then names its job.

    Args:
        job: what each task of a job calls with the trial folder.
        ended: the readings of trials whose end is known, by name: they are not read again.

    Raises:
        UsageError: there is no sbatch here, or Slurm refuses some of the jobs; says which it accepted before.
    """
    require_scheduler(slurm)
    # The attempts are counted before `prepare` forgets what earlier ones left.
    avoided = _avoided_nodes(sweep, readings, ended)
    waiting = deque(job_arrays(slurm, [reading.trial for reading in readings], avoided))
    attempts = {reading.name: reading.next_attempt for reading in readings}
    executor = _executor(sweep, slurm, snapshot_code(sweep.folder.code.absolute()))
    for array in waiting:  # a wrong setting is found before anything of an earlier attempt is forgotten
        if array.saves:
            require_time_to_save(slurm)
        _executor_for(executor, array).text(array.shape, len(array.trials))
    submitted: list[SubmittedArray] = []
    while waiting:
        array = waiting.popleft()
        try:
            # Prepared only now, array by array: what Slurm refuses before this one leaves the later trials as they
            # were.
            work = [FolderWork(sweep.prepare(trial), attempts[trial.trial_id]) for trial in array.trials]
            job_id = _executor_for(executor, array).submit(job, work, array.shape)
        except TooManyJobs as refusal:
            if len(array.trials) == 1:
                raise _refusal_error(refusal, submitted) from None
            # The halves go to the front of the queue, so that trials are still submitted in their order.
            waiting.extendleft(reversed(array.parts(-(-len(array.trials) // 2))))
        except UsageError as refusal:
            raise _refusal_error(refusal, submitted) from None
        else:
            submitted.append(SubmittedArray(job_id, array.shape, tuple(trial.trial_id for trial in array.trials)))
    return submitted


def require_scheduler(slurm: SlurmSpec) -> None:
    """Raises UsageError where the commands of the scheduler are not here."""
    require_pbs() if slurm.scheduler == "pbs" else require_sbatch(slurm)


def _executor(sweep: Sweep, slurm: SlurmSpec, code: Path) -> SlurmExecutor | PbsExecutor:
    kind = PbsExecutor if slurm.scheduler == "pbs" else SlurmExecutor
    return kind(slurm, f"trisweep-{sweep.record.name}", code, logs_folder(sweep.folder))


def _executor_for(executor: SlurmExecutor | PbsExecutor, array: JobArray) -> SlurmExecutor | PbsExecutor:
    return replace(executor.without_nodes(array.avoided), requeues=array.saves)


def _refusal_error(refusal: UsageError, submitted: Sequence[SubmittedArray]) -> UsageError:
    """The refusal, which also says what was submitted before it and runs all the same."""
    if not submitted:
        return refusal
    jobs, count = ", ".join(array.job_id for array in submitted), sum(len(array.trial_ids) for array in submitted)
    # Of the same type, because whoever goes on with the sweep tells a limit from a wrong request.
    return type(refusal)(f"{count} trials were submitted (job {jobs}), and then: {refusal.problem}", refusal.remedy)


def logs_folder(folder: SweepFolder) -> Path:
    """The folder that holds what jobs are handed, and what they print."""
    return folder.submitit.absolute()


def _avoided_nodes(
    sweep: Sweep, readings: Sequence[TrialReading], ended: Mapping[str, TrialReading]
) -> dict[str, tuple[str, ...]]:
    """The nodes that each trial is not to be given. Those that fail are known from all trials of the sweep."""
    bad = bad_nodes(ended.get(trial.trial_id) or sweep.read_trial(trial) for trial in sweep.record.trials)
    return {reading.name: nodes_to_avoid(reading, bad, _spare(reading)) for reading in readings}


def _spare(reading: TrialReading) -> int:
    return min(block.cluster.num_nodes - block.num_nodes for block in reading.planned.blocks)
