"""The small job of Slurm or PBS that goes on with a sweep: step after step, until the sweep or its own time is over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cli.commands.sweep.sweep_run import report_at_the_end
from cli.output.console import console
from cli.output.progress import PlainProgress, SweepUnderWay
from conf.private_files import read_own
from launcher.command_trainer.process import without_seat
from launcher.control.loop import go_on
from launcher.control.rules import SweepStep
from launcher.external_commands import without_job
from launcher.folder_lock import lock_folder, wait_until_free
from launcher.job import own_submission
from launcher.slurm.controller import submit_controller, take_up
from launcher.slurm.job_status import requeue
from results.mlflow.follow import followed_in_mlflow
from sweeps.folder.journal import History
from sweeps.trial import SweepFolder
from train_core.trial.folder import JobFolder

LOCK_SECONDS = 60.0
"""Whoever submitted this job, or its own earlier run, may still be about to leave the sweep's folder."""


def run_in_slurm(folder: str) -> None:
    """Go on with the sweep whose controller's folder this is.

    Raises:
        UsageError: others may write what it is to do.
    """
    if own_submission(JobFolder(folder)) is None:
        return
    sweep_folder = SweepFolder(Path(folder).parent)
    for path in (sweep_folder.record, sweep_folder.journal):
        read_own(path)
    # What the scheduler said of this job alone, such as how often it was started, is not handed on.
    kept = {*without_job(without_seat(os.environ)), "SLURM_JOB_ID"} - {"PBS_JOBID"}
    for name in os.environ.keys() - kept:
        del os.environ[name]
    # A person's order that comes while the report is written clears the end of the sweep: nobody else looks at it.
    while _carry_out(sweep_folder) and not (left := History.kept_in(sweep_folder)).finished and not left.is_cancelled:
        print("Orders have come meanwhile.", flush=True)


def _carry_out(sweep_folder: SweepFolder) -> bool:
    """Go on until this job has no more to do, or its time is over; True once the sweep has ended and was reported."""
    wait_until_free(sweep_folder, LOCK_SECONDS)
    with lock_folder(sweep_folder):
        composition, conductor = take_up(sweep_folder)
        settings = composition.settings
        try:
            with followed_in_mlflow(sweep_folder.path, settings.tracking):
                under_way = SweepUnderWay(conductor.sweep.record.objective, settings.search.asks_later)
                progress, poll_seconds = PlainProgress(console, under_way), settings.controller.poll_seconds
                step = go_on(conductor, progress, poll_seconds, is_over=SweepStep.leaves_nothing_to_do)
        except KeyboardInterrupt as stop:
            print(f"Stopped by signal {stop.args[0]}.", flush=True)
            if stop.args[0] != signal.SIGUSR2:
                return False
            if settings.slurm.scheduler == "slurm":
                requeue()
            else:  # PBS runs a job that has ended well no second time, so that another one follows it
                print(f"Job {submit_controller(conductor.sweep, settings.slurm, settings.controller)} goes on.")
            return False
    print(f"The sweep has ended: {step.finished}." if step.finished else "The sweep is paused.", flush=True)
    if step.finished:
        report_at_the_end(conductor.sweep, settings.tracking)
    return bool(step.finished)
