"""One player on one ground: how many jobs it needs until one of them is near the best."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from benchmarks.replay.ground import NEAR, Ground
from benchmarks.replay.players import Player


@dataclass(frozen=True, slots=True)
class Game:
    """The jobs of one player on one ground.

    Attributes:
        jobs_to_best: the first job that was near the best; None where none was.
        num_jobs: the number of all jobs.
        num_lost: how many of them ran out of memory.
        share: the best rate of all jobs as a share of the best candidate's.
    """

    jobs_to_best: int | None
    num_jobs: int
    num_lost: int
    share: float

    @property
    def counted_jobs(self) -> float:
        """The jobs until one was near the best; infinitely many where none was."""
        return inf if self.jobs_to_best is None else self.jobs_to_best


def play(player: Player, ground: Ground, most_jobs: int, *, to_the_end: bool = False) -> Game:
    """Let a player choose jobs until one is near the best, or until it ends itself.

    Args:
        to_the_end: go on although one is near the best, as nobody knows that in reality.
    """
    jobs_to_best: int | None = None
    num_lost, share, number = 0, 0.0, 0
    while number < most_jobs and (to_the_end or jobs_to_best is None):
        if (row := player.next_row()) is None:
            break
        number += 1
        player.tell(row)
        num_lost += not ground.fits[row]
        share = max(share, ground.share_of_best(row))
        if jobs_to_best is None and share >= NEAR:
            jobs_to_best = number
    return Game(jobs_to_best, number, num_lost, share)
