"""How many jobs a search needs on a ground until one of them reaches 98 % of the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from benchmarks.search_jobs.grounds import NEAR, Ground


class Player(Protocol):
    """A search that is asked for one plan after another."""

    def next_row(self) -> int | None:
        """The next plan to run; None once the search has ended."""

    def tell(self, row: int, log_cost: float | None) -> None:
        """What came of it; None where it ran out of memory."""


@dataclass(frozen=True)
class Played:
    """One search on one ground.

    Attributes:
        jobs: the first job that reached 98 % of the best; None where none did.
        num_jobs: how many were run in all.
        num_lost: how many of them ran out of memory.
        share: of the best, that the best of all jobs reached.
        ended_itself: the search saw no use in more jobs.
    """

    jobs: int | None
    num_jobs: int
    num_lost: int
    share: float
    ended_itself: bool


def play(player: Player, ground: Ground, most_jobs: int, *, to_the_end: bool = False) -> Played:
    """Run a search until it has found a plan near the best, or to its own end.

    Args:
        to_the_end: go on although the plan was found, as nobody knows that in reality.
    """
    found: int | None = None
    lost, share, number = 0, 0.0, 0
    while number < most_jobs and (to_the_end or found is None):
        row = player.next_row()
        if row is None:
            return Played(found, number, lost, share, True)
        number += 1
        measured = ground.measured(row)
        player.tell(row, measured)
        lost += measured is None
        share = max(share, ground.share_of_best(row))
        if found is None and share >= NEAR:
            found = number
    return Played(found, number, lost, share, False)
