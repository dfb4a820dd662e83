"""What a first submission of a whole sweep would hand to sbatch."""

from __future__ import annotations

from conf.types.sites import SlurmSpec
from launcher.workplaces.queue import JobRequest, requests
from sweeps.sweep import Sweep


def requested(sweep: Sweep, slurm: SlurmSpec) -> list[JobRequest]:
    return requests(sweep, slurm, [sweep.read_trial(trial) for trial in sweep.runnable])
