"""Commands that ask for the listed points of a sweep, each once and whatever it costs."""

from __future__ import annotations

from conf.types.sites import SlurmSpec
from launcher.control.orders import SweepCommand, SweepOrders
from launcher.job_payload import RUN_IN_SLURM
from launcher.slurm.executor import SlurmJob
from launcher.sweep import SubmissionSummary, slurm_rules, submit
from sweeps.sweep import Sweep


def submit_points(
    sweep: Sweep, slurm: SlurmSpec, *, job: SlurmJob = RUN_IN_SLURM, retry_failed: bool = False
) -> SubmissionSummary:
    """Submit the points that have neither a result nor a live job."""
    command = SweepCommand(sweep, slurm_rules(slurm), SweepOrders(retry_failed=retry_failed))
    return submit(command, slurm, job=job)
