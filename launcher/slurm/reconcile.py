"""Adds what Slurm and this machine know to what the folders say of jobs that have left no measurement."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from launcher.local.workplace import AnyReading, look_here, with_end
from launcher.slurm.job_status import JobStanding, standings
from launcher.slurm.query import FRESH, NOT_SUBMITTED, UNKNOWN_HERE, SlurmJobState, SlurmSilent
from launcher.slurm.verdict import allocation_end, is_settled, verdict
from sweeps.folder.submission import Submission, places_at_submission, read_submission, write_submission
from sweeps.reading import Reading
from train_core.trial.folder import JobFolder, TrialFolder, last_attempt, result_in

FORGOTTEN_SECONDS = 60.0
"""A job that is younger may not have reached the accounting yet."""

INTERRUPTED = "its submission was interrupted before Slurm had taken it; the same command submits it again"


def reconcile(
    readings: Iterable[AnyReading],
    patience: float = FRESH,
    tell_silence: Callable[[], None] = lambda: None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> list[AnyReading]:
    """The same readings, with what Slurm and this machine say of jobs that left no measurement.

    The outcome of those that have ended for good is written, and read again. A job that is queued, requeued, suspended
    or held is not ended; nor is one that ended a moment ago and whose files may still appear. Where Slurm does not
    answer, nothing is concluded.

    Args:
        patience: how old Slurm's answer may be in seconds, for those who look again and again.
        tell_silence: is called where Slurm does not answer.
        tell: is told of how many jobs it has been seen so far how they stand.
    """
    local = [look_here(reading) for reading in readings]
    silent = [each for each in local if each.is_silent_in_slurm]
    try:
        answers = iter(standings([each.submission for each in silent if each.submission], patience))
    except SlurmSilent:
        tell_silence()
        return local
    concluded: dict[int, AnyReading] = {}
    for each in silent:
        concluded[id(each)] = _conclude(each, next(answers))
        tell(len(concluded), len(silent))
    return [concluded.get(id(each), each) for each in local]


def _conclude(reading: AnyReading, job: JobStanding) -> AnyReading:
    """The trial read again with Slurm's answer, and its end written down where that is certain.

    It is read again because the job may have spoken, or been replaced by another, while Slurm was being asked.
    """
    # The number of a job whose submitter died before it could write it down, unless another job came meanwhile.
    if job.submission != reading.submission and read_submission(reading.folder) == reading.submission:
        with contextlib.suppress(OSError):  # the disk is full, or the sweep is another's
            write_submission(reading.folder, job.submission)
    answered = reading.told(_state_of(job))
    if not (_has_ended(answered, job) and answered.awaits_slurm and answered.submission == job.submission):
        return answered
    if _take_in_from_before_the_move(answered.folder, job.submission):
        return replace(answered)
    answered.folder.put_aside_damaged_trial()  # it may be why the job ended, and people are to see it
    concluded = allocation_end if job.submission.inside else verdict
    printed = result_in(job.submission.output_of(0), answered.planned.fingerprint)
    return with_end(answered, printed or concluded(answered, job.submission, job.state))


def _take_in_from_before_the_move(folder: JobFolder, submission: Submission) -> bool:
    """Copy what the job has written where the folder lay when it was submitted; False where it has measured nothing.

    A job that runs while its folder is moved, or while a link to it is turned, makes the old path anew.
    """
    for old in places_at_submission(folder, submission):
        there, claimed = TrialFolder(old.path), last_attempt(old.claim)
        is_ours = claimed is None or claimed.number == submission.attempt
        has_ended = there.measurement.exists() or there.failures.exists()
        if is_ours and has_ended and not there.submission.exists():
            large = shutil.ignore_patterns(there.checkpoints.name)
            with contextlib.suppress(OSError):
                shutil.copytree(there.path, folder.path, symlinks=True, ignore=large, dirs_exist_ok=True)
                return there.measurement.exists()
    return False


def _state_of(job: JobStanding) -> SlurmJobState | None:
    if job.elsewhere:
        return SlurmJobState(UNKNOWN_HERE, cause=job.elsewhere)
    if job.submission.queue_id is None:
        return SlurmJobState(NOT_SUBMITTED, cause=INTERRUPTED)
    return job.state


def _has_ended(reading: Reading, job: JobStanding) -> bool:
    """True if Slurm says that the job has ended, or has forgotten it and it shows no sign of life."""
    if job.state is not None:
        return is_settled(job.state)
    if (
        not job.is_unknown
        or job.submission.queue_id is None
        or time.time() - job.submission.submitted < FORGOTTEN_SECONDS
    ):
        return False
    # A slurmctld that has lost its memory knows nothing of a job that goes on, and whose heart beats.
    beat = reading.heartbeat_age_seconds
    return beat is None or beat > FORGOTTEN_SECONDS
