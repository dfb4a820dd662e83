"""Answers of Slurm's commands, kept for a moment, so that a process which looks again and again asks slurmctld seldom.

A slurmctld that answers slowly or with errors is asked the more rarely by those who take an older answer (`patience`).
A step of a sweep takes none, and always asks.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from typing import NamedTuple

from launcher.external_commands import ANSWER_SECONDS, ask

SLOW_FACTOR = 10.0
"""An answer that took a second is not asked for again for ten seconds, by those who may take an older one."""

MOST_SECONDS = 60.0
"""No answer is kept for longer, and slurmctld is left unasked for no longer."""


class CommandAnswer(NamedTuple):
    """The answer of one command of Slurm's.

    Attributes:
        asked: when it was asked, in seconds since the epoch.
        took: seconds until it had answered.
        exit_code: None where there is no such command, or where it did not answer in time.
    """

    asked: float
    took: float
    exit_code: int | None
    said: str
    complained: str

    @property
    def has_failed(self) -> bool:
        return self.exit_code != 0

    @property
    def age(self) -> float:
        """Seconds since it was given; infinite where the clock has been set back meanwhile."""
        age = time.time() - self.asked
        return age if age >= 0 else float("inf")

    def is_good_for(self, patience: float) -> bool:
        """True if it is fresh enough for whoever takes one of that age in seconds, or Slurm is to be left in peace."""
        # A tool that fails is left alone twice as long, and a slow one in proportion to what an answer cost.
        wanted = 2 * patience if self.has_failed else max(patience, SLOW_FACTOR * self.took)
        return bool(patience) and self.age < min(wanted, MOST_SECONDS)


FRESH = 0.0
"""The age of a stored answer, in seconds, that is good enough for those who always ask."""
WATCHING = 30.0
"""Of those who look again and again: sites ask that squeue is not called in a loop; folders may be read at any time."""

_kept: dict[tuple[str, ...], CommandAnswer] = {}


def answer_of(command: Sequence[str], patience: float, seconds: float = ANSWER_SECONDS) -> CommandAnswer:
    """Return the command's answer: a stored one if it is fresh enough, else a new one.

    Args:
        patience: how old it may be, in seconds.
        seconds: after which a new one is not waited for any longer.
    """
    # Another cluster, or another stand-in for a tool, has answers of its own.
    request = (os.environ.get("SLURM_CONF", ""), shutil.which(command[0]) or "", *command)
    kept = _kept.get(request) if patience else None
    if kept is not None and kept.is_good_for(patience):
        return kept
    began, started = time.time(), time.monotonic()
    exit_code, said, complained = ask(*command, seconds=seconds)
    answer = CommandAnswer(began, time.monotonic() - started, exit_code, said, complained)
    if patience:  # who asks once keeps nothing
        for old in [each for each, stored in _kept.items() if stored.age > MOST_SECONDS]:
            del _kept[old]  # a sweep that goes on asks about other jobs, and nobody asks the old question again
        _kept[request] = answer
    return answer


def forget_answers() -> None:
    """Have everything asked anew: what Slurm said before its jobs were cancelled is not how they stand."""
    _kept.clear()
