"""What a first submission of a whole sweep would hand to sbatch."""

from __future__ import annotations

from conf.types.sites import SlurmSpec
from launcher.slurm.workplace import JobRequest, QueueOnPaper
from sweeps.sweep import Sweep


def requested(sweep: Sweep, slurm: SlurmSpec) -> list[JobRequest]:
    queue = QueueOnPaper(slurm)
    queue.start(sweep, [sweep.read_trial(trial) for trial in sweep.runnable])
    return queue.requests
