"""Which trials share a job array: those of one shape that avoid the same nodes, as many as the site allows."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from conf.sites import SlurmSpec
from launcher.slurm.cluster import this_cluster
from launcher.slurm.resources import by_shape, split
from launcher.slurm.submit_limits import most_jobs
from sweeps.folder.submission import JobShape
from sweeps.trial import Trial
from train_core.process.stop import saves_when_stopped

DEFAULT_MAX_ARRAY_SIZE = 1001
"""Slurm's own default of MaxArraySize, for a dry run where no Slurm answers."""


class JobArray(NamedTuple):
    """Trials that are submitted together.

    Attributes:
        avoided: nodes that none of them is to be given.
        saves: they are warned before the time limit, save, and go on in another run of the job.
    """

    shape: JobShape
    avoided: tuple[str, ...]
    saves: bool
    trials: list[Trial]

    def parts(self, size: int) -> list[JobArray]:
        return [self._replace(trials=part) for part in split(self.trials, size)]


def job_arrays(slurm: SlurmSpec, trials: Sequence[Trial], avoided: Mapping[str, tuple[str, ...]]) -> list[JobArray]:
    """The arrays, the smallest jobs first.

    Args:
        avoided: nodes that a trial is not to be given, by its id.
    """
    size = min(max_array_size(slurm), most_jobs(slurm) or sys.maxsize) if trials else 1
    return [
        part
        for shape, group in by_shape(trials).items()
        for alike in _alike(shape, group, avoided)
        # Slurm takes no heterogeneous job into an array, so that each such trial is a job of its own.
        for part in alike.parts(1 if shape.parts else size)
    ]


def _alike(shape: JobShape, trials: Iterable[Trial], avoided: Mapping[str, tuple[str, ...]]) -> list[JobArray]:
    groups: dict[tuple[tuple[str, ...], bool], list[Trial]] = {}
    for trial in trials:
        assert trial.experiment is not None
        kind = avoided.get(trial.trial_id, ()), saves_when_stopped(trial.experiment)
        groups.setdefault(kind, []).append(trial)
    return [JobArray(shape, *kind, few) for kind, few in groups.items()]


def max_array_size(slurm: SlurmSpec) -> int:
    """Elements that one array may have: as configured, else as Slurm says, else Slurm's default."""
    return slurm.max_array_size or this_cluster().max_array_size or DEFAULT_MAX_ARRAY_SIZE
