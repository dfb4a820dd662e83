"""Candidates on a machine, and what each of them really takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log

from benchmarks.replay.run import ReplayedReading
from sweeps.points.axes import Point
from train_core.costs.setting import Booleans, Floats

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
