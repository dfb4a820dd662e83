"""Asking Slurm how jobs stand. Never hangs; a job that Slurm has forgotten is simply absent from the answer."""

from __future__ import annotations

import datetime
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from typing import NamedTuple

ANSWER_SECONDS = 15
ENDED_STATES = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"),
    *("NODE_FAIL", "BOOT_FAIL", "DEADLINE", "PREEMPTED", "REVOKED"),
)
"""Every other state (PENDING, RUNNING, SUSPENDED, REQUEUED, REQUEUE_HOLD, ...) is that of a live job."""

WAITING_STATES = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")


class JobState(NamedTuple):
    """How a job, or one element of an array, stands.

    Attributes:
        ended: seconds since the epoch; None while it lives, or where Slurm does not say.
    """

    name: str
    ended: float | None = None

    @property
    def is_live(self) -> bool:
        return self.name not in ENDED_STATES

    @property
    def is_waiting(self) -> bool:
        return self.name in WAITING_STATES


class SlurmSilent(Exception):
    """Neither squeue nor sacct could be asked."""


def query_jobs(job_ids: Iterable[str]) -> dict[str, JobState]:
    """States by job id (`12`, or `12_3` for an array element), in at most two calls for all of them.

    The controller comes first: it alone knows at once of a requeue. The accounting then tells of jobs that the
    controller has forgotten; where there is no accounting, those are absent.

    Raises:
        SlurmSilent: Slurm answers nothing at all, so nothing can be said about any job.
    """
    wanted = set(job_ids)
    if not wanted:
        return {}
    queued = _squeue(wanted)
    found = _matching(wanted, queued or {})
    forgotten = wanted - found.keys()
    recorded = _sacct(forgotten) if forgotten else {}
    if queued is None and recorded is None:
        raise SlurmSilent
    return _matching(forgotten, recorded or {}) | found


def _matching(wanted: set[str], states: dict[str, JobState]) -> dict[str, JobState]:
    """Elements that were cancelled before they started may be listed only together, under the id of their array."""
    listed = {job_id: states.get(job_id) or states.get(job_id.split("_")[0]) for job_id in wanted}
    return {job_id: state for job_id, state in listed.items() if state is not None}


def _squeue(job_ids: set[str]) -> dict[str, JobState] | None:
    answer = _ask(["squeue", "--states=all", "--noheader", "--array", "--format=%i|%T|%e", *_of(job_ids)])
    if answer is None:
        return None
    if answer.returncode and "Invalid job id" not in answer.stderr:
        return None
    return _parsed(answer.stdout)


def _sacct(job_ids: set[str]) -> dict[str, JobState] | None:
    columns = ["--noheader", "--parsable2", "--allocations", "--format=JobID,State,End"]
    answer = _ask(["sacct", *columns, *_of(job_ids)])
    return None if answer is None or answer.returncode else _parsed(answer.stdout)


def _of(job_ids: set[str]) -> list[str]:
    return ["--jobs=" + ",".join(sorted({job_id.split("_")[0] for job_id in job_ids}))]


def _ask(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    if not shutil.which(command[0]):
        return None
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None


def _parsed(lines: str) -> dict[str, JobState]:
    """Lines `12_[0-2,5%1]|PENDING|end`; an unexpanded range stands for all its elements."""
    states: dict[str, JobState] = {}
    for line in lines.splitlines():
        job_id, state, end = (part.strip() for part in line.split("|"))
        name = state.split()[0] if state else "UNKNOWN"  # "CANCELLED by 1000"
        for single in _expanded(job_id):
            states[single] = JobState(name, _seconds(end) if name in ENDED_STATES else None)
    return states


def _expanded(job_id: str) -> list[str]:
    master, bracket, ranges = job_id.partition("_[")
    if not bracket:
        return [job_id]
    elements: list[str] = []
    for part in re.sub(r"%\d+|\]|\.\.\.", "", ranges).split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            elements += [f"{master}_{index}" for index in range(int(first), int(last or first) + 1)]
    return elements


def _seconds(text: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:  # "Unknown", "N/A"
        return None


def age(state: JobState) -> float:
    """Seconds since the job ended; infinite where Slurm does not say."""
    return float("inf") if state.ended is None else time.time() - state.ended
