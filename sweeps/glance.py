"""A cheap look at a sweep's folder: whether a file that decides how a trial stands may have changed since another look.

What the files mean, `sweeps.reading` alone says, which also names them. Here nothing is opened.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sweeps.reading import DECIDING, Reading, TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import change_time
from train_core.measurement import Outcome

TICK_NS = 2_000_000_000
"""The coarsest clock of a file system that is still in use (FAT's). Two changes within one tick have the same time."""


@dataclass(frozen=True)
class Glance:
    """The state of a sweep's files at one moment.

    Attributes:
        summary: of the names, sizes, times and inodes of all files; what else tells them apart.
        newest_ns: when the latest of them was changed, in the file system's time.
    """

    summary: str
    newest_ns: int

    def is_sharp(self, taken_ns: int) -> bool:
        """True if every change after the glance shows in another one's summary.

        A file that was changed just before it may be changed again without getting another time.

        Args:
            taken_ns: when the glance was taken, in the file system's time.
        """
        return self.newest_ns + TICK_NS <= taken_ns


def glance_at(sweep: Sweep) -> Glance:
    """Look at a sweep before it is read, so that a change meanwhile shows in the next glance.

    The record counts as it was read: a later one has another time of its making, or other trials.
    """
    names = [trial.trial_id for trial in sweep.record.trials]
    sights = list(_sights(sweep, names))
    whole = repr((sweep.record.created, sweep.record.git_sha, names, sights))
    newest = max((max(seen[:2]) for seen in sights if seen), default=0)
    return Glance(hashlib.sha256(whole.encode()).hexdigest(), newest)


def is_settled(reading: TrialReading) -> bool:
    """True if a glance sees all that could change this reading: it waits for no job and no process."""
    left_out = reading.trial.infeasible_reason is not None or not reading.trial.selected
    return reading.measurement is not None or left_out


def _sights(sweep: Sweep, names: list[str]) -> Iterator[tuple[int, ...]]:
    folder = sweep.folder
    for path in (folder.record, folder.journal):
        yield _sight(path)
    # Paths are put together as text, because ten thousand folders are looked at.
    trials = os.fspath(folder.trials)
    for name in names:
        for file in DECIDING:
            yield _sight(f"{trials}/{name}/{file}")


def _sight(path: str | Path) -> tuple[int, ...]:
    """Return a file's times of change (content and inode), size and inode number; empty if it is not there."""
    try:
        seen = os.stat(path)  # noqa: PTH116 (a Path for each file takes longer than the file system)
    except OSError:
        return ()
    return seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, seen.st_ino


def age_seconds(reading: Reading, now: float) -> float | None:
    """Seconds for which it has waited, or has run; of one that has ended, for which it ran. None before submission.

    Args:
        now: seconds since the epoch.
    """
    if reading.measurement is not None:
        return max(0.0, reading.measurement.ended - reading.measurement.started)
    if reading.submission is None:
        return None
    begun = reading.submission.submitted
    if reading.outcome is Outcome.RUNNING:
        # Slurm may have started the job again, and then a rank takes the folder anew.
        begun = max(begun, change_time(reading.folder.claim))
    return max(0.0, now - begun)
