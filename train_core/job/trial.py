"""The two ways a trial folder is run: supervised on one machine, or as one rank that srun or torchrun started."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from conf.errors import TrisweepError, UsageError
from conf.plan.experiment import Experiment
from conf.units import count_of
from train_core.checkpoints.huggingface_config import warn_of_weights
from train_core.data.byte_pairs import tokenizer_of
from train_core.data.tokens import prepare, token_folder
from train_core.job.failures import ended_by_failure, failed_measurement, failure_of
from train_core.job.supervisor import Job, supervise
from train_core.process.lock import hold_lock
from train_core.process.long_lived import importing_torch
from train_core.process.stop import StopSwitch, cancelled_by_signals, never, noted_signals, saves_when_stopped
from train_core.trial.folder import Attempt, TrialFolder
from train_core.trial.measurement import Measurement, StepMetrics


def run_trial_here(
    folder: Path,
    devices: tuple[int, ...] = (),
    time_limit_seconds: float | None = None,
    on_step: Callable[[StepMetrics], None] | None = None,
) -> Measurement:
    """Run every rank of a trial on this machine, watch them, and write how it ended to `measurement.json`.

    Cancelled by SIGTERM or SIGINT it ends its ranks, writes nothing and lets SystemExit or KeyboardInterrupt out, so
    that the trial can be run again. A trial with checkpoints is saved first, and goes on when it is run again; once it
    has completed it is not run again.

    Args:
        devices: the GPU of each rank; empty runs on the CPU, or on GPUs 0, 1, ... where the cluster's device is a GPU.
        on_step: called in this process for each step.

    Raises:
        UsageError: another process runs this trial, or the number of devices is not the number of ranks.
        Stopped: a signal came, and the training was saved.
    """
    trial = TrialFolder(folder)
    experiment = trial.read_experiment()
    saves = saves_when_stopped(experiment)
    if saves and (completed := trial.completed(experiment)):
        return completed
    switch = StopSwitch() if saves else None
    with hold_lock(trial.running_lock), cancelled_by_signals(switch):
        trial.clear_results()
        trial.keep_room()
        started, gpus = time.time(), _gpus(experiment, devices)
        job = Job(trial, experiment.parallel.world_size, gpus, time_limit_seconds, on_step, switch or never)
        measurement = _measure(job, experiment, started)
        _write(trial, measurement)
    return measurement


def _write(trial: TrialFolder, measurement: Measurement) -> None:
    """Write `measurement.json`. Where that cannot be done, how the trial ended is told in the error instead."""
    try:
        trial.write_result(measurement)
    except OSError as error:
        cause = measurement.cause.removesuffix(".") or "the training ended well"
        problem = f"{measurement.outcome}: {cause}. Nor could {trial.measurement} be written ({error.strerror})"
        raise UsageError(problem, "Make room there, and run the same command again.") from None


def _measure(job: Job, experiment: Experiment, started: float) -> Measurement:
    try:
        # Here and not in the ranks, so that a wrong path is one message and not one of each rank.
        tokens = prepare(experiment, token_folder(job.trial, experiment))
        # What a rank says of its weights is in its log alone.
        warn_of_weights(experiment, partial(tokenizer_of, experiment.data, tokens and tokens.first))
    except TrisweepError as error:
        # No rank has started yet, so that none is to blame.
        failure = failure_of(0, error).model_copy(update={"blamed": None})
        return failed_measurement(experiment.fingerprint, failure, started)
    return supervise(job, experiment.fingerprint, started)


def _gpus(experiment: Experiment, devices: tuple[int, ...]) -> tuple[int, ...] | None:
    """The GPU of each rank, or None for the CPU."""
    needed = experiment.parallel.world_size
    if not devices:
        return tuple(range(needed)) if experiment.cluster.device.kind == "gpu" else None
    if len(devices) != needed:
        raise UsageError(
            f"the plan has {count_of(needed, 'rank')}, and {count_of(len(devices), 'device', 'was', 'were')} given",
            "Give one per rank.",
        )
    return devices


def run_trial_as_rank(
    folder: Path, on_step: Callable[[StepMetrics], None] | None = None, attempt: Attempt | None = None
) -> Measurement | None:
    """Be the rank that torchrun's or srun's environment says; rank 0 writes `measurement.json` and returns it.

    A rank that fails leaves `failures/rank-N.json` and ends the process, whose exit code tells the launcher. A trial
    that has completed already, as in a job that Slurm was asked to start once more, keeps its measurement.

    Args:
        on_step: called on rank 0 for each step.
        attempt: of the job that this process belongs to; once a later one has begun, this one writes nothing more.

    Raises:
        UsageError: no launcher gave a seat, it started another number of ranks than the plan has, or another process
            runs this trial.
        Stopped: a signal came, and the training was saved.
        AttemptOver: a later attempt has begun.
    """
    trial = TrialFolder(folder, attempt)
    experiment = trial.read_experiment()
    # Before torch is imported, which takes seconds: a signal that came meanwhile would end the process unsaved.
    stop_asked = noted_signals(experiment)
    with importing_torch():
        from train_core.job.rank import run_rank
        from train_core.process.world import require_seat

    seat = require_seat()
    if seat.size != experiment.parallel.world_size:  # before anything of an earlier attempt is forgotten
        started = count_of(seat.size, "rank", "was", "were")
        problem = f"{started} started, and the plan has {experiment.parallel.world_size}"
        raise UsageError(problem, "Start as many tasks as parallel.world_size.")
    if completed := trial.completed(experiment):
        return completed if seat.rank == 0 else None
    # A second start is refused while one trains here, whose unfinished checkpoint it would delete. Not where Slurm's
    # attempts are counted: a rank of the run before may still be alive, and the next attempt takes the folder from it.
    alone = hold_lock(trial.running_lock) if seat.rank == 0 and trial.attempt is None else nullcontext()
    with alone:
        _begin(trial, seat.rank)
        with ended_by_failure(trial, seat.rank):
            measurement = run_rank(trial, seat, experiment.cluster.device.kind, seat.local_rank, on_step, stop_asked)
            if seat.rank == 0:
                _write(trial, measurement)
    return measurement if seat.rank == 0 else None


def _begin(trial: TrialFolder, rank: int) -> None:
    """Take the folder, and forget what an earlier attempt left there.

    Only what this rank itself writes is forgotten, because other ranks of this attempt may already have failed.
    """
    trial.require_current()
    if rank == 0:
        trial.claim_for_attempt()
    trial.failure_of(rank).unlink(missing_ok=True)
    if rank == 0:
        trial.forget_progress()
        trial.keep_room()
        trial.alarm.unlink(missing_ok=True)
