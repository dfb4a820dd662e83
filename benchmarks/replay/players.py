"""Candidates on a machine, searches as players on them, and how many jobs each needs to be near the best.

The players are a search of sweeps, chance and Optuna's TPE. None of them pays for a candidate that is illegal: only
jobs count.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Any, Protocol, TypeAlias

import numpy as np

from benchmarks.replay.run import ReplayedReading
from conf.units import GIBIBYTE
from costs.setting import Booleans, Floats
from sweeps.points.axes import Point
from sweeps.search.searcher import Search

NEAR = 0.98
"""The share of the best candidate's rate from which on a candidate is near the best."""


@dataclass(frozen=True, eq=False)
class Ground(ABC):
    """Candidates, each by its number, on one machine. Searches know the cost model at most, never the machine.

    Attributes:
        shares: the true rate of each candidate as a share of the best one's, without noise; 0 of a candidate that runs
            out of memory and of one that is not searched, (n,).
        fits: the mask of candidates that really fit, (n,).
        fits_on_paper: the mask of searched candidates that fit by the cost model, (n,).
    """

    shares: Floats
    fits: Booleans
    fits_on_paper: Booleans

    @abstractmethod
    def reading_of(self, row: int) -> ReplayedReading:
        """The candidate's trial, which has ended, with noise."""

    @abstractmethod
    def row_of_point(self, point: Point) -> int:
        """The number of the candidate that a search of sweeps proposes."""

    def share_of_best(self, row: int) -> float:
        """The candidate's true rate as a share of the best one's."""
        return float(self.shares[row])

    def log_cost(self, row: int) -> float | None:
        """The logarithm of the measured device-seconds for each FLOP of the model; None where it ran out of memory."""
        performance = self.reading_of(row).performance
        return None if performance is None else -log(performance.model_flops_per_second_per_device)


class Player(Protocol):
    """A search that chooses one candidate after another."""

    def next_row(self) -> int | None:
        """The next candidate to run; None once the search has ended."""

    def tell(self, row: int) -> None:
        """Let the search see how the candidate that it chose last has ended."""


class SearchPlayer:
    """A search of sweeps, which knows of its ground only the trials that have ended.

    Args:
        first: the candidates that a sweep runs before it asks its search, such as the baseline.
    """

    def __init__(self, search: Search, ground: Ground, first: Sequence[int] = ()) -> None:
        self.search, self.ground = search, ground
        self.readings: list[ReplayedReading] = []
        self._first = iter(first)

    def next_row(self) -> int | None:
        if (row := next(self._first, None)) is not None:
            return row
        proposals = self.search.ask(self.readings, 1).proposals
        return self.ground.row_of_point(proposals[0].point) if proposals else None

    def tell(self, row: int) -> None:
        self.readings.append(self.ground.reading_of(row))


class RandomPlayer:
    """Candidates that fit by the cost model, each as likely, none twice."""

    def __init__(self, ground: Ground, seed: int) -> None:
        feasible = np.flatnonzero(ground.fits_on_paper)
        self._rows = iter(np.random.default_rng(seed).permutation(feasible).tolist())

    def next_row(self) -> int | None:
        return next(self._rows, None)

    def tell(self, row: int) -> None:
        """It learns nothing."""


DrawRow: TypeAlias = Callable[[Any], int | None]
"""Lets a trial of Optuna's decide on a candidate; None is returned where its values are no candidate."""


@dataclass(frozen=True, slots=True)
class ExcessBytes:
    """The bytes by which each candidate exceeds its device, negative where it fits, (n,): on paper, and in truth."""

    on_paper: Floats
    in_truth: Floats


class TpePlayer:
    """Optuna's TPE. A candidate that is illegal or runs out of memory is told as FAIL, and nothing is known on paper.

    Args:
        most_draws: draws that lead to no new job, in a row, after which the player ends itself.
        constraints: makes it TPE with constraints, which is told by how many GiB a candidate exceeds its device: on
            paper, or as a job showed; and pays for none that does not fit on paper.
    """

    def __init__(
        self, ground: Ground, seed: int, draw: DrawRow, most_draws: int, constraints: ExcessBytes | None = None
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.ground, self.draw, self.most_draws, self.constraints = ground, draw, most_draws, constraints
        self._failed = optuna.trial.TrialState.FAIL
        with warnings.catch_warnings(action="ignore"):
            limit = None if constraints is None else lambda trial: trial.user_attrs["over"]
            self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, constraints_func=limit))
        self._chosen: set[int] = set()

    def next_row(self) -> int | None:
        for _ in range(self.most_draws):
            self.trial = self.study.ask()
            row = self.draw(self.trial)
            if row is None:
                self._refuse(100.0)
            elif self.constraints is not None and self.constraints.on_paper[row] > 0:
                self._refuse(float(self.constraints.on_paper[row]) / GIBIBYTE)
            elif row in self._chosen:
                self.study.tell(self.trial, state=self._failed)
            else:
                self._chosen.add(row)
                return row
        return None

    def tell(self, row: int) -> None:
        cost = self.ground.log_cost(row)
        if cost is None:
            self._refuse(0.0 if self.constraints is None else float(self.constraints.in_truth[row]) / GIBIBYTE)
            return
        self.trial.set_user_attr("over", (0.0,))
        self.study.tell(self.trial, cost)

    def _refuse(self, gib: float) -> None:
        if self.constraints is None:
            self.study.tell(self.trial, state=self._failed)
            return
        # A value is asked of a trial that is to count as beyond the constraint; it is compared with no other.
        self.trial.set_user_attr("over", (gib,))
        self.study.tell(self.trial, 0.0)


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
