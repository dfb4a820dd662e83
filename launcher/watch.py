"""Slurm's word about jobs that somebody watches: asked for again and again, but the more rarely the less changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from launcher.state import look_here, reconcile
from sweeps.folder.submission import Submission
from sweeps.reading import JobState, Reading
from train_core.measurement import Outcome

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 60.0
"""Between two questions. Sites ask that squeue is not called in a loop; folders may be read as often as one likes."""

AnyReading = TypeVar("AnyReading", bound=Reading)
Standings = tuple[tuple[str, Outcome | None], ...]


class SlurmWatch:
    """Adds to readings what Slurm says, or what it said last.

    The pause doubles while nothing changes. When a trial starts or ends, others may follow, and it is short again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause, self._next = FIRST_PAUSE_SECONDS, clock()
        self._standings: Standings = ()
        self._words: dict[Path, tuple[Submission | None, JobState | None]] = {}

    def latest(self, readings: Sequence[AnyReading]) -> list[AnyReading]:
        """The readings with Slurm's latest word, for which it is asked only if its turn has come."""
        states = (
            self._ask(readings) if self._clock() >= self._next else [self._with_last_state(each) for each in readings]
        )
        self._count(tuple((reading.name, reading.outcome) for reading in states))
        return states

    def _ask(self, readings: Sequence[AnyReading]) -> list[AnyReading]:
        states = reconcile(readings)
        self._words = {reading.folder.path: (reading.submission, reading.job) for reading in states}
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        self._next = self._clock() + self._pause
        return states

    def _with_last_state(self, reading: AnyReading) -> AnyReading:
        """The reading with what was last said of the same job."""
        submission, job = self._words.get(reading.folder.path, (None, None))
        is_open = reading.is_in_slurm and reading.measurement is None
        # What was said of an earlier attempt's job says nothing of this one.
        if is_open and job is not None and submission == reading.submission:
            return replace(reading, job=job)
        return look_here(reading)

    def _count(self, standings: Standings) -> None:
        """Ask soon where something has changed since the last look."""
        if standings != self._standings:
            self._pause = FIRST_PAUSE_SECONDS
            self._next = min(self._next, self._clock() + self._pause)
        self._standings = standings
