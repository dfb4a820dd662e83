"""The run of a job that may write into a trial's folder. No torch.

Slurm may start a job again while ranks of its earlier run are still alive, because the daemon that should have ended
them died first. Rank 0 of the new run therefore writes its attempt into the folder, and every writer looks there
before it writes: who finds a later attempt than its own is over.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Attempt(NamedTuple):
    """One run of a trial. A later one compares as the larger.

    Attributes:
        number: which submission of the trial it is, from 1. A job's id would not do, as Slurm may give it out again.
        restarts: how often Slurm has started this job again.
    """

    number: int
    restarts: int

    def __str__(self) -> str:
        return f"{self.number}.{self.restarts}"


class AttemptOver(Exception):
    """A later attempt works in the folder, so that this process may write nothing more."""


def last_attempt(claim: Path) -> Attempt | None:
    """The attempt that a file names; None where there is no such file, or nothing to be read in it."""
    try:
        number, _, restarts = claim.read_text().strip().partition(".")
        return Attempt(int(number), int(restarts))
    except (OSError, ValueError):
        return None
