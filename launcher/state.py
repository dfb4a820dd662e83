"""What Slurm and this machine add to what the folders say: how jobs stand that have not spoken for themselves."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from launcher.local_jobs import controller_of
from launcher.silent_jobs import is_settled, verdict
from launcher.slurm_query import JobState, SlurmSilent, query_jobs
from sweeps.reading import Reading

FORGOTTEN_SECONDS = 60.0
"""A job that is younger may not have reached the accounting yet."""

STARTING = JobState("RUNNING")
"""A job of this machine whose process runs, and which may not have taken its folder's lock yet."""

AnyReading = TypeVar("AnyReading", bound=Reading)


def seen_here(reading: AnyReading) -> AnyReading:
    """The same, with the word of this machine where it runs the job."""
    submission = None if reading.measurement else reading.submission
    runs = submission is not None and (controller_of(submission) is not None)
    return replace(reading, job=STARTING) if runs else reading


def reconciled(readings: Iterable[AnyReading]) -> list[AnyReading]:
    """The same, with the word of Slurm and of this machine about jobs that left no measurement.

    The outcome of those that have ended for good is written, and read again. A job that is queued, requeued, suspended
    or held is not ended; nor is one that ended a moment ago and whose files may still appear. Where Slurm does not
    answer, nothing is concluded.
    """
    known = [seen_here(reading) for reading in readings]
    try:
        states = query_jobs(reading.job_id for reading in known if reading.job_id and _is_silent(reading))
    except SlurmSilent:
        return known
    return [_concluded(reading, states) if _is_silent(reading) else reading for reading in known]


def _is_silent(reading: Reading) -> bool:
    """Its job is one of Slurm's, and has left no measurement."""
    return reading.is_in_slurm and reading.measurement is None


def _concluded(reading: AnyReading, states: dict[str, JobState]) -> AnyReading:
    """Read again, as the job may have spoken or been replaced while Slurm was asked; its end written where certain."""
    submission, state = reading.submission, states.get(reading.job_id or "")
    assert submission is not None
    told = replace(reading, job=state)
    has_ended = is_settled(state) if state else time.time() - submission.submitted > FORGOTTEN_SECONDS
    if not (has_ended and told.awaits_slurm and told.submission == submission):
        return told
    told.folder.write_verdict(verdict(told, submission, state))
    return replace(told)
