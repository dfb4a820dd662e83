"""Ending what a sweep has queued or running."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

import psutil

from conf.errors import UsageError
from launcher.folder_lock import holder
from launcher.local.machine import end_trees, is_running_here, supervisor_of
from launcher.long_run import LongRun
from launcher.refused import taken_back_if_refused
from launcher.slurm.job_status import cancel_jobs, live_job
from sweeps.folder.journal import Cancelled, History, Journal
from sweeps.folder.submission import Submission, begun_at, read_submission
from sweeps.reading import CANCELLED_BY_NAME
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial
from train_core.job.failures import without_numbers
from train_core.trial.measurement import Outcome

SWEEP_END_SECONDS = 15
"""Longer than a sweep takes to end its own jobs, which is at most twice `local.machine.CANCEL_SECONDS`."""


def cancel_sweep(sweep: Sweep) -> int:
    """Cancel every live job of the sweep, and end the process that runs it on this machine, if there is one.

    Returns how many trials were queued or running, or had not been submitted yet.

    Raises:
        UsageError: Slurm does not answer, or the sweep runs on another machine or as another user.
    """
    with taken_back_if_refused(sweep.folder):
        return _end_jobs_and_process(sweep)


def _end_jobs_and_process(sweep: Sweep) -> int:
    # These are listed first, because the sweep's process ends them itself and they would not be counted later.
    open_here = [each for each in sweep.read() if not each.is_in_slurm and each.measurement is None]
    here = [each.submission for each in open_here if each.submission and is_running_here(each.folder, each.submission)]
    journal = Journal(sweep.folder.journal)
    before = History.of(journal.read_new())
    begun = before.begun
    # The process that carries the sweep out goes before its jobs: else it would start the next trial for each job that
    # ends. One on another machine finds the journal's word, and so does whoever would go on with the sweep later.
    if begun is not None and begun.on_slurm:
        journal.append(Cancelled(trial_id=None))
    else:
        processes = _sweep_process(sweep.folder)
        _require_own([*processes, *_supervisors(here)])
        for process in processes:  # which then ends its jobs in order
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGINT)
                process.wait(SWEEP_END_SECONDS)
        # A sweep of which nothing is left has ended, and there is nothing to cancel.
        if begun is not None and any(each.outcome is Outcome.PENDING for each in sweep.read()):
            journal.append(Cancelled(trial_id=None))
    if allocation := live_job(sweep.folder.allocation):
        return len(here) + _cancel_allocation(sweep, allocation.submission)
    by_job = [controller] if (controller := read_submission(sweep.folder.controller)) else []
    with contextlib.suppress(UsageError):  # it is said once the trials' jobs have been ended
        cancel_jobs(by_job)
        by_job = []
    end_trees(_supervisors(here))
    # Read only now: until it ended the other process may have submitted trials, and asked ones may have come.
    readings = Sweep.stored_in(sweep.folder).read()
    in_slurm = [reading.submission for reading in readings if reading.submission and reading.is_silent_in_slurm]
    called_off = [] if before.is_cancelled else [reading for reading in readings if reading.is_called_off]
    return len(here) + len(called_off) + len(cancel_jobs([*by_job, *in_slurm]))


def cancel_trials(sweep: Sweep, trials: Sequence[Trial]) -> list[str]:
    """End these trials alone, for good, and return the ids of those that had not ended.

    Raises:
        UsageError: Slurm does not answer, or the trials run as another user.
    """
    readings = [sweep.read_trial(trial) for trial in trials if trial.experiment is not None]
    open_trials = [reading for reading in readings if reading.measurement is None]
    jobs = [reading.submission for reading in open_trials if reading.submission]
    _require_own(_supervisors(jobs))
    # Whoever carries the sweep out finds this, writes down how the trials ended, and starts none of them again.
    with taken_back_if_refused(sweep.folder):
        Journal(sweep.folder.journal).append(*(Cancelled(trial_id=reading.name) for reading in open_trials))
        in_slurm = set(cancel_jobs([job for job in jobs if job.executor != "local"]))
    is_free = holder(sweep.folder) is None
    if is_free:  # else the sweep's process ends its own, and writes down why
        end_trees(_supervisors(jobs))
    for each in open_trials:
        if each.job_id in in_slurm or (is_free and not each.is_in_slurm):
            started = begun_at(each.folder, each.submission) or time.time()
            fingerprint = each.planned.fingerprint
            # Else Slurm's word would come first, which does not know whether anybody wants it back.
            each.folder.write_verdict(without_numbers(fingerprint, Outcome.CANCELLED, CANCELLED_BY_NAME, started))
    return [reading.name for reading in open_trials]


def _cancel_allocation(sweep: Sweep, allocation: Submission) -> int:
    """Cancel the job, with which its controller and its steps end; returns how many trials ran in it or waited for it.

    Trials that are queued beside it are cancelled too.
    """
    readings = sweep.read()
    in_slurm = [reading.submission for reading in readings if reading.submission and reading.is_silent_in_slurm]
    steps = [each for each in in_slurm if each.inside and each.inside.job_name == allocation.job_name]
    waiting = [each for each in readings if each.outcome is Outcome.PENDING and not each.submission]
    cancel_jobs([allocation])
    for each in waiting:
        # They have no job of their own, of which Slurm could tell later that it was cancelled.
        cause = f"cancelled before {allocation.job_id}, the job that was to run it, had started it"
        verdict = without_numbers(each.planned.fingerprint, Outcome.CANCELLED, cause, time.time())
        each.folder.write_verdict(verdict)
    return len(steps) + len(waiting) + len(cancel_jobs([each for each in in_slurm if each not in steps]))


def cancel_training(run: LongRun) -> str:
    """Cancel the Slurm job of a training and return its id.

    Raises:
        UsageError: it has none that is queued or running, or Slurm does not answer.
    """
    submission = read_submission(run.folder)
    cancelled = cancel_jobs([submission]) if submission is not None and submission.executor == "slurm" else []
    if not cancelled:
        problem = f"No job of {run.folder.path} is queued or running"
        raise UsageError(problem, "End one that trains on this machine with Ctrl-C where it was started; it saves.")
    return cancelled[0]


def _supervisors(jobs: Sequence[Submission]) -> list[psutil.Process]:
    return [supervisor for job in jobs if (supervisor := supervisor_of(job))]


def _sweep_process(folder: SweepFolder) -> list[psutil.Process]:
    """The process that runs the sweep on this machine, if one does and is another than this."""
    sweep = holder(folder)
    # A process id of 0 means that the holder has taken the lock, but has not written its id into it yet.
    if sweep is None or sweep.pid in (0, os.getpid()):
        return []
    if not sweep.is_here:
        problem = f"The sweep is run by process {sweep.pid} on {sweep.hostname}"
        raise UsageError(problem, f"Cancel it on {sweep.hostname}.")
    with contextlib.suppress(psutil.NoSuchProcess):
        return [psutil.Process(sweep.pid)]
    return []


def _require_own(processes: Sequence[psutil.Process]) -> None:
    """Refuse before anything is ended, where this user may not end all of it."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if os.geteuid() not in (0, process.uids().real):
                who = process.username()
                problem = f"The sweep is run by user {who} (process {process.pid})"
                raise UsageError(problem, f"Only {who} or root can cancel it.")
