"""The requests of jobs to the cluster: shapes, arrays of trials of one shape, and the cost at most."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from conf.grouped import grouped
from conf.plan.experiment import Experiment
from conf.types.sites import SlurmSpec
from conf.units import MINUTES_PER_HOUR
from launcher.control.rules import devices_charged
from launcher.slurm.cluster import sacctmgr_rows, this_cluster
from sweeps.folder.submission import JobShape, shape_of
from sweeps.trial import Trial
from train_core.process.machine import this_user
from train_core.process.stop import saves_when_stopped

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
