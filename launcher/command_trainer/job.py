"""Runs a trial folder whose trainer is another program: on this machine, or as one task of a Slurm job."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from conf.errors import EXIT_FAILED
from launcher.command_trainer.run import ProgramRun
from launcher.command_trainer.seat import seat_in_slurm, seats_here
from train_core.job.failures import failed_measurement
from train_core.measurement import Measurement, Outcome
from train_core.process.lock import hold_lock
from train_core.process.stop import cancelled_by_signals
from train_core.trial_folder import Attempt, TrialFolder

WAIT_SECONDS = 2.0


def run_here(folder: Path, devices: tuple[int, ...] = (), time_limit_seconds: float | None = None) -> Measurement:
    """Run the program on this machine, watch its log, and write how it ended to `measurement.json`.

    Cancelled by SIGTERM or SIGINT it ends the program, writes nothing and lets SystemExit or KeyboardInterrupt out, so
    that the trial can be run again.

    Args:
        devices: the GPU of each rank; empty lets the program see what this process sees.

    Raises:
        UsageError: another process runs this trial.
    """
    trial = TrialFolder(folder)
    experiment = trial.read_experiment()
    with hold_lock(trial.running_lock) as lock, cancelled_by_signals():
        trial.clear_results(keeps_steps=True)
        started = time.time()
        run = ProgramRun(trial, experiment, seats_here(experiment), devices, time_limit_seconds, lock)
        failure = run.failure()
        failed = failure and failed_measurement(experiment.fingerprint, failure, started)
        measurement = failed or run.complete(started)
        trial.write_measurement(measurement)
    return measurement


def run_as_task(folder: Path, attempt: Attempt) -> None:
    """Be a task that srun started: start its part of the program; the first task writes `measurement.json`.

    A task whose program fails leaves `failures/rank-N.json` and ends the process with a code that ends the job.

    Raises:
        AttemptOver: a later attempt has begun.
    """
    trial = TrialFolder(folder, attempt)
    experiment = trial.read_experiment()
    seat = seat_in_slurm(experiment)
    if trial.completed(experiment):
        return
    trial.require_current()
    # A failure of an earlier run of the job would be taken for one of this run.
    trial.failure_of(seat.first_rank).unlink(missing_ok=True)
    if seat.is_first:
        trial.claim_for_attempt()
        trial.forget_progress(keeps_steps=True)
    started, before = time.time(), trial.read_measurement()
    if experiment.trainer.start == "once" and not seat.is_first:
        _wait_for_the_first(trial, before)
        return
    with cancelled_by_signals():
        run = ProgramRun(trial, experiment, [seat])
        failure = run.failure()
        if failure is not None:
            trial.write_failure(failure)
            print(f"{failure.traceback}\n{failure.cause}", file=sys.stderr, flush=True)
            sys.exit(EXIT_FAILED)
        if seat.is_first:
            trial.write_measurement(run.complete(started))


def _wait_for_the_first(trial: TrialFolder, before: Measurement | None) -> None:
    """Keep this node's task alive: a site may end a step some time after its first task has ended.

    Args:
        before: what stood in the folder when the task began. Times of files are those of a server, whose clock may be
            hours off, and say nothing here.
    """
    while (measurement := trial.read_measurement()) is None or measurement == before:
        if measurement is not None and measurement.outcome is Outcome.COMPLETED:
            return  # the first task was faster than this one
        trial.require_current()
        time.sleep(WAIT_SECONDS)
