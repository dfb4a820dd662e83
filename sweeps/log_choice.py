"""The trial that a person means by a part of its name; the one whose log they want to read, and its file."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from conf.errors import UsageError
from conf.nearest import listed
from sweeps.folder.submission import LOG_SUFFIXES
from sweeps.reading import Reading
from train_core.trial.measurement import Outcome

MOST_NAMED = 8
NEAR = 0.3
"""The likeness, of 1 for equal names, from which on one may have been meant."""
UNEVENTFUL = (None, Outcome.PENDING, Outcome.COMPLETED, Outcome.INFEASIBLE, Outcome.PRUNED)

AnyReading = TypeVar("AnyReading", bound=Reading)


def reading_called(readings: Sequence[AnyReading], name: str) -> AnyReading:
    """The trial or training of that name or title, or the only one whose name begins with, or holds, what was given.

    Raises UsageError where there is none, or several.
    """
    # From the most exact to the least, so that what names one outright is never ambiguous.
    found = [reading for reading in readings if name in (reading.name, reading.title)]
    found = found or [reading for reading in readings if reading.name.startswith(name)]
    found = found or [reading for reading in readings if name in reading.name]
    found = found or [reading for reading in readings if name in reading.title]
    if len(found) == 1:
        return found[0]
    if found:
        several = listed([reading.name for reading in found], MOST_NAMED)
        raise UsageError(f"{len(found)} trials have {name} in their names", f"Give more of one of these: {several}.")
    names = [reading.name for reading in readings if reading.outcome is not None]
    near = difflib.get_close_matches(name, names, n=MOST_NAMED, cutoff=NEAR) or names
    nothing = "There is none to choose from; `trisweep status` shows how the sweep stands."
    remedy = f"Give more of one of these: {listed(near, MOST_NAMED)}." if near else nothing
    raise UsageError(f"No trial has {name} in its name", remedy)


def most_interesting(readings: Sequence[AnyReading], *, to_follow: bool) -> AnyReading:
    """The trial to look at where none was named: the last that failed, else one that runs, else the last that ended.

    To follow, one that runs comes first, as the others write nothing more. Raises UsageError where none of them has
    written a log yet, or, where one is to be followed, none was submitted.
    """
    spoken = [reading for reading in readings if reading.log is not None]
    if to_follow and not spoken:
        spoken = [reading for reading in readings if reading.submission is not None and reading.measurement is None]
    if not spoken:
        raise UsageError("No trial has written a log yet", "`trisweep status` shows what they wait for.")
    return max(
        spoken, key=lambda reading: (_interest(reading, to_follow), reading.end_time or reading.start_time or 0.0)
    )


def log_file(reading: Reading, rank: int | None) -> Path | None:
    """The log to read: the rank's, else that of the rank that failed, else the newest; None while there is none.

    Raises UsageError where the rank has no log, although others have.
    """
    if rank is None:
        return reading.log
    submission = reading.submission
    own = [reading.folder.rank_log(rank)]
    own += [submission.output_of(rank), submission.error_of(rank)] if submission else []
    there = sorted((path for path in own if path.exists()), key=lambda path: -path.stat().st_size)
    if there or reading.log is None:
        return there[0] if there else None
    logs = sorted(path.name for path in reading.folder.logs.glob("*") if path.suffix in LOG_SUFFIXES)
    raise UsageError(f"Rank {rank} of {reading.name} has no log", f"Its folder has: {', '.join(logs)}.")


def _interest(reading: Reading, to_follow: bool) -> int:
    if reading.outcome is Outcome.RUNNING:
        return 3 if to_follow else 1
    return 0 if reading.outcome in UNEVENTFUL else 2
