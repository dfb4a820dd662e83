"""Slurm's queue as a workplace: it takes any number of trials, in one job array per resource shape."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from conf.errors import UsageError
from conf.grouped import grouped
from conf.plan.experiment import Experiment
from conf.types.sites import SlurmSpec
from conf.units import MINUTES_PER_HOUR, count_of
from launcher.control.attempts import bad_nodes, nodes_to_avoid
from launcher.control.rules import devices_charged
from launcher.control.workplace import Unanswered, Workplace
from launcher.job_payload import RUN_IN_SLURM, FolderWork
from launcher.provenance import snapshot_code
from launcher.refused import FilesBefore, PartlyRefused
from launcher.slurm.cluster import sacctmgr_rows, this_cluster
from launcher.slurm.executor import SlurmExecutor, SlurmJob, TooManyJobs
from launcher.slurm.job_records import charged_times
from launcher.slurm.job_status import cancel_jobs
from launcher.slurm.pbs import PbsExecutor, require_scheduler
from launcher.slurm.reconcile import reconcile
from launcher.slurm.sbatch import require_time_to_save
from sweeps.folder.submission import JobShape, begun_at, shape_of
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import Trial
from train_core.job.failures import without_numbers
from train_core.process.machine import this_user
from train_core.process.stop import saves_when_stopped
from train_core.trial.measurement import Outcome

DEFAULT_MAX_ARRAY_SIZE = 1001
"""Slurm's own default of MaxArraySize, for a dry run where no Slurm answers."""

QOS_LIMITS = ("MaxSubmitPU", "MaxSubmitPA", "GrpSubmit")
"""Of a QOS: jobs per user, per account, and in all."""


def by_shape(trials: Iterable[Trial]) -> dict[JobShape, list[Trial]]:
    """Trials grouped by shape, the smallest jobs first. Within a group they keep their order."""
    groups = grouped(trials, lambda trial: shape_of(trial.planned))
    return dict(sorted(groups.items(), key=lambda group: (group[0].num_nodes, group[0].devices_per_node)))


def device_hours(experiment: Experiment, slurm: SlurmSpec) -> float:
    """Device-hours of one trial if it runs into its time limit: an upper bound."""
    return devices_charged(experiment, slurm) * slurm.time_limit_minutes / MINUTES_PER_HOUR


class JobArray(NamedTuple):
    """Trials that are submitted together, and nodes that none of them is to be given.

    Those that save are warned before the time limit, and go on in another run of the job.
    """

    shape: JobShape
    avoided: tuple[str, ...]
    saves: bool
    trials: list[Trial]

    def parts(self, size: int) -> list[JobArray]:
        """Arrays of as many consecutive trials: Slurm's MaxArraySize is one more than the highest index."""
        return [self._replace(trials=self.trials[first : first + size]) for first in range(0, len(self.trials), size)]


def job_arrays(slurm: SlurmSpec, trials: Sequence[Trial], avoided: Mapping[str, tuple[str, ...]]) -> list[JobArray]:
    """The arrays, the smallest jobs first; `avoided` are the nodes that a trial is not to be given, by its id."""

    def options_of(trial: Trial) -> tuple[tuple[str, ...], bool]:
        # Both are options of a whole array, so that trials which differ in one of them are arrays apart.
        return avoided.get(trial.trial_id, ()), saves_when_stopped(trial.planned)

    size = min(max_array_size(slurm), most_jobs(slurm) or sys.maxsize) if trials else 1
    return [
        part
        for shape, group in by_shape(trials).items()
        for options, alike in grouped(group, options_of).items()
        # Slurm takes no heterogeneous job into an array, so that each such trial is a job of its own.
        for part in JobArray(shape, *options, alike).parts(1 if shape.parts else size)
    ]


def max_array_size(slurm: SlurmSpec) -> int:
    """Elements that one array may have: as configured, else as Slurm says, else Slurm's default."""
    if slurm.scheduler == "pbs":  # whose arrays are another thing in each of its kinds
        return 1
    return slurm.max_array_size or this_cluster().max_array_size or DEFAULT_MAX_ARRAY_SIZE


def most_jobs(slurm: SlurmSpec) -> int | None:
    """The least of the limits that hold for jobs with these settings; None where there is none, or nobody says.

    It is a hint: what sbatch takes is for Slurm to say, as other jobs of the user count too.
    """
    # Without AccountingStorageEnforce limits stand in the books, and nobody keeps to them.
    if not this_cluster().enforces_limits:
        return None
    rows = _associations(slurm)
    limits = [limit for row in rows for limit in row[3:]]
    qos = _qos_of(slurm, rows)
    limits += [limit for row in sacctmgr_rows("qos", ("Name", *QOS_LIMITS)) if row[0] == qos for limit in row[1:]]
    # An empty cell sets no limit.
    return min((int(limit) for limit in limits if limit.isdigit()), default=None)


def qos_of_jobs(slurm: SlurmSpec) -> str:
    """The QOS of jobs with these settings: the chosen one, else the user's default."""
    return _qos_of(slurm, [] if slurm.qos else _associations(slurm))


def _associations(slurm: SlurmSpec) -> list[list[str]]:
    columns = ("Account", "QOS", "DefaultQOS", "MaxSubmit", "GrpSubmit")
    rows = sacctmgr_rows("assoc", columns, f"user={this_user()}")
    # Where no account is named, any of the user's may be the one that Slurm takes.
    return [row for row in rows if slurm.account in (None, row[0])]


def _qos_of(slurm: SlurmSpec, associations: Iterable[list[str]]) -> str:
    # Slurm calls the QOS of users who have no other one normal.
    return slurm.qos or next((row[2] for row in associations if row[2]), "normal")


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
    """A job array that Slurm has taken, and its trials."""

    job_id: str
    shape: JobShape
    trial_ids: tuple[str, ...]


def _arrays(
    sweep: Sweep,
    executor: SlurmExecutor | PbsExecutor,
    readings: Sequence[TrialReading],
    ended: Mapping[str, TrialReading],
) -> list[tuple[JobArray, str]]:
    """The arrays in which these trials are submitted, each with the text that sbatch gets."""
    avoided = _avoided_nodes(sweep, readings, ended)
    arrays = job_arrays(executor.slurm, [reading.trial for reading in readings], avoided)
    if any(array.saves for array in arrays):
        require_time_to_save(executor.slurm)
    return [(array, _executor_for(executor, array).text(array.shape, len(array.trials))) for array in arrays]


def _executor(sweep: Sweep, slurm: SlurmSpec, code: Path) -> SlurmExecutor | PbsExecutor:
    kind = PbsExecutor if slurm.scheduler == "pbs" else SlurmExecutor
    return kind(slurm, f"trisweep-{sweep.record.name}", code, sweep.folder.submitit.absolute())


def _executor_for(executor: SlurmExecutor | PbsExecutor, array: JobArray) -> SlurmExecutor | PbsExecutor:
    return replace(executor.without_nodes(array.avoided), requeues=array.saves)


def _refusal_error(refusal: UsageError, submitted: Sequence[SubmittedArray]) -> UsageError:
    """The refusal, which also says what was submitted before it and runs all the same."""
    if not submitted:
        return refusal
    jobs, count = ", ".join(array.job_id for array in submitted), sum(len(array.trial_ids) for array in submitted)
    # Whoever goes on with the sweep tells a limit from a wrong request.
    kind = type(refusal) if isinstance(refusal, TooManyJobs | Unanswered) else PartlyRefused
    return kind(
        f"{count_of(count, 'trial', 'was', 'were')} submitted (job {jobs}), and then: {refusal.problem}", refusal.remedy
    )


def _avoided_nodes(
    sweep: Sweep, readings: Sequence[TrialReading], ended: Mapping[str, TrialReading]
) -> dict[str, tuple[str, ...]]:
    """The nodes that each trial is not to be given. Those that fail are known from all trials of the sweep."""
    bad = bad_nodes(ended.get(trial.trial_id) or sweep.read_trial(trial) for trial in sweep.record.trials)
    spare = {each.name: min(b.cluster.num_nodes - b.num_nodes for b in each.planned.blocks) for each in readings}
    return {each.name: nodes_to_avoid(each, bad, spare[each.name]) for each in readings}


@dataclass
class SlurmQueue(Workplace):
    """Submits trials as Slurm jobs.

    Attributes:
        refusal: Slurm's last word that it takes no more jobs now; None once it takes some again.
        tell: is told how many of so many trials were submitted.
    """

    slurm: SlurmSpec
    job: SlurmJob = RUN_IN_SLURM
    tell: Callable[[int, int], None] = lambda done, total: None
    arrays: list[SubmittedArray] = field(default_factory=list)
    refusal: TooManyJobs | None = None
    charged_times = staticmethod(charged_times)  # by the accounting

    def __post_init__(self) -> None:
        self._ended: dict[str, TrialReading] = {}

    def read_trials(self, sweep: Sweep) -> list[TrialReading]:
        """Trials whose end is known are not read again: there may be thousands, and the look comes twice a minute.

        A job that Slurm could not start, and holds for good, is ended: another one may take its place.
        """
        open_trials = [trial for trial in sweep.record.trials if trial.trial_id not in self._ended]
        readings = {each.name: each for each in reconcile(sweep.read_trial(trial) for trial in open_trials)}
        for each in [each for each in readings.values() if each.awaits_slurm and each.job and each.job.why_given_up]:
            self.end([each], Outcome.NODE_FAILED, each.cause)
            readings[each.name] = sweep.read_trial(each.trial)
        self._ended |= {name: each for name, each in readings.items() if each.measurement is not None}
        return [readings.get(trial.trial_id) or self._ended[trial.trial_id] for trial in sweep.record.trials]

    def start(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
        """Submit the trials; where Slurm takes no more jobs for now, the rest is left to a later step."""
        for each in readings:
            self._ended.pop(each.name, None)
        self.refusal = None
        try:
            self.arrays += self._submit(sweep, readings)
        except TooManyJobs as refusal:
            self.refusal = refusal
        before = {each.name: each.submission for each in readings}
        now = (sweep.read_trial(each.trial) for each in readings)
        return [each.name for each in now if each.submission is not None and each.submission != before[each.name]]

    def _submit(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[SubmittedArray]:
        """Submit the trials and return at once; every trial folder then names its job."""
        require_scheduler(self.slurm)
        executor = _executor(sweep, self.slurm, snapshot_code(sweep.folder.code.absolute()))
        # A wrong setting is found, and the attempts are counted, before `prepare` forgets what earlier ones left.
        waiting = deque(array for array, _ in _arrays(sweep, executor, readings, self._ended))
        attempts = {reading.name: reading.next_attempt for reading in readings}
        submitted: list[SubmittedArray] = []
        while waiting:
            array = waiting.popleft()
            before = FilesBefore.of_trials([sweep.folder_of(trial) for trial in array.trials])
            try:
                # Prepared only now, array by array: what Slurm refuses before this one leaves the later trials as they
                # were.
                work = [FolderWork(sweep.prepare(trial), attempts[trial.trial_id]) for trial in array.trials]
                job_id = _executor_for(executor, array).submit(self.job, work, array.shape)
            except TooManyJobs as refusal:
                before.put_back()
                if len(array.trials) == 1:
                    raise _refusal_error(refusal, submitted) from None
                # The halves go to the front of the queue, so that trials are still submitted in their order.
                waiting.extendleft(reversed(array.parts(-(-len(array.trials) // 2))))
            except UsageError as refusal:
                if not isinstance(refusal, Unanswered):
                    before.put_back()
                raise _refusal_error(refusal, submitted) from None
            else:
                submitted.append(SubmittedArray(job_id, array.shape, tuple(trial.trial_id for trial in array.trials)))
                self.tell(sum(len(each.trial_ids) for each in submitted), len(readings))
        return submitted

    def end(self, readings: Sequence[TrialReading], outcome: Outcome, cause: str) -> None:
        cancel_jobs([each.submission for each in readings if each.submission and each.measurement is None])
        for reading in readings:
            self._ended.pop(reading.name, None)
            measurement = reading.folder.read_measurement()
            # It may have ended by itself meanwhile, and then its own result stays.
            if measurement is not None and measurement.outcome is not Outcome.CANCELLED:
                continue
            started = begun_at(reading.folder, reading.submission) or time.time()
            reading.folder.write_measurement(without_numbers(reading.planned.fingerprint, outcome, cause, started))


class SeenFromOutside(SlurmQueue):
    """The allocation of a sweep, for commands on a login node, which still find out whether anything is left to run."""

    def start(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
        return []

    def room(self) -> int | None:
        # Any number above 0, so that a search is asked whether it has more to propose.
        return 1


@dataclass
class QueueOnPaper(Workplace):
    """The queue of a dry run: it keeps the requests that `SlurmQueue` would submit, and ends nothing."""

    slurm: SlurmSpec
    requests: list[JobRequest] = field(default_factory=list)
    charged_times = staticmethod(charged_times)  # by the accounting

    def read_trials(self, sweep: Sweep) -> list[TrialReading]:
        return reconcile(sweep.read_trial(trial) for trial in sweep.record.trials)

    def start(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
        # The code's folder gets its name from what is copied there, and here nothing is.
        executor = _executor(sweep, self.slurm, sweep.folder.code.absolute() / "SNAPSHOT")
        for array, text in _arrays(sweep, executor, readings, ended={}):
            hours = sum(device_hours(trial.experiment, self.slurm) for trial in array.trials if trial.experiment)
            self.requests.append(JobRequest(array.shape, text, hours, tuple(array.trials)))
        return [each.name for each in readings]

    def end(self, readings: Sequence[TrialReading], outcome: Outcome, cause: str) -> None:
        """Leave the trials as they are."""
