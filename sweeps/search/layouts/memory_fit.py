"""The probability that a plan fits: a posterior of its memory over the predicted, refitted after every trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sqrt

import numpy as np

from conf.plan.knobs import SCHEDULES
from conf.types.recompute import RECOMPUTES
from sweeps.planner.plans.space import MOST_ZERO_STAGE
from sweeps.search.layouts.priced import Priced
from train_core.costs.setting import Booleans, Floats, Plans

WHOLE_SPREAD = 0.05  # of the error that all plans share, as the standard deviation of its logarithm
KIND_SPREAD = 0.03  # of that of each recomputation, ZeRO stage and schedule
MEMORY_KNOBS = {"recompute": len(RECOMPUTES), "zero_stage": MOST_ZERO_STAGE + 1, "schedule": len(SCHEDULES)}
PRIOR = np.array([WHOLE_SPREAD**2, *[KIND_SPREAD**2] * sum(MEMORY_KNOBS.values())])
NOISE = 0.01
BEYOND = 0.02  # by how much a plan that ran out of memory is taken to exceed the least that it must have needed
NOISE_BEYOND = 0.02


@dataclass(frozen=True, slots=True)
class MemorySeen:
    """Logarithms of needed over predicted bytes of plans; one that ran out of memory needed at least that."""

    plans: Plans
    ratios: Floats
    is_bound: Booleans

    @classmethod
    def of(cls, plans: Plans, exact: Sequence[tuple[int, float]], bounds: Sequence[tuple[int, float]]) -> MemorySeen:
        """The memory of these plans: exact or bounding ratios, each with the number of its plan."""
        both = [*exact, *bounds]
        chosen = np.array([number for number, _ in both], dtype=int)
        is_bound = np.array([number >= len(exact) for number in range(len(both))], dtype=bool)
        return cls(plans.rows(chosen), np.array([ratio for _, ratio in both], dtype=np.float64), is_bound)


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The posterior of the logarithm of needed over predicted bytes: a part that all plans share, and one of each kind.

    Attributes:
        mean: of these parts, (parts,).
        covariance: of them, (parts, parts).
    """

    mean: Floats
    covariance: Floats

    @classmethod
    def fit(cls, seen: MemorySeen) -> MemoryFit:
        is_exact = ~seen.is_bound
        fit = cls._of(seen.plans.rows(is_exact), seen.ratios[is_exact], np.full(is_exact.sum(), NOISE))
        if is_exact.all():
            return fit
        # What ran out of memory needed at least its bound; where more was expected anyway, it says nothing new.
        expected, _ = fit.ratio(seen.plans)
        values = np.where(seen.is_bound, np.maximum(expected, seen.ratios + BEYOND), seen.ratios)
        return cls._of(seen.plans, values, np.where(seen.is_bound, NOISE_BEYOND, NOISE))

    @classmethod
    def _of(cls, plans: Plans, ratios: Floats, noise: Floats) -> MemoryFit:
        # Linear regression with a normal prior: each row is weighted by its noise, and the prior's precision is added.
        rows = _parts(plans) / noise[:, None]
        covariance = np.linalg.inv(np.diag(1.0 / PRIOR) + rows.T @ rows)
        return cls(covariance @ (rows.T @ (ratios / noise)), covariance)

    def ratio(self, plans: Plans) -> tuple[Floats, Floats]:
        """Mean and standard deviation of that logarithm for other plans, (n,)."""
        rows = _parts(plans)
        # The diagonal of rows C rows' alone; what is left out of it is the noise, below which no plan is known.
        variance = ((rows @ self.covariance) * rows).sum(axis=1)
        return rows @ self.mean, np.sqrt(np.maximum(variance, NOISE**2))

    def probability(self, priced: Priced) -> Floats:
        """Return the probability that each plan fits, (n,)."""
        mean, spread = self.ratio(priced.plans)
        # A plan fits if log(needed / predicted) is at most log(room / predicted).
        return cumulative((np.log(priced.room_bytes / priced.held_bytes) - mean) / spread)


def _parts(plans: Plans) -> Floats:
    """Mark the parts that the memory of each plan has, (n, parts)."""
    kinds = [getattr(plans, name)[:, None] == np.arange(number) for name, number in MEMORY_KNOBS.items()]
    return np.concatenate([np.ones((len(plans), 1)), *kinds], axis=1)


def cumulative(z: Floats) -> Floats:
    """Its largest error is 1.5e-7. Source: Abramowitz and Stegun, formula 7.1.26, for the error function."""
    x = np.abs(z) / sqrt(2)
    t = 1.0 / (1.0 + 0.3275911 * x)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * np.exp(-(x**2))
    return np.where(z > 0, 1.0 - tail, tail)


def expected_improvement(best: float, mean: Floats, spread: Floats) -> Floats:
    """Return the mean amount by which a normal variable is below `best`, counting 0 where it is above."""
    # With z standard deviations of room below `best`, the mean of max(0, best - x) is spread (z Phi(z) + phi(z)).
    z = (best - mean) / spread
    # Far in the tail the two summands cancel to less than the rounding error of either.
    density = np.exp(-0.5 * z**2) / sqrt(2 * pi)
    return np.maximum(spread * (z * cumulative(z) + density), 0.0)
