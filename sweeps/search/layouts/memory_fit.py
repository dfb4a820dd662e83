"""The probability that a plan fits: a posterior of its memory over the predicted, refitted after every trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sqrt
from statistics import NormalDist

import numpy as np

from conf.plan.knobs import SCHEDULES
from conf.types.recompute import RECOMPUTES
from costs.setting import Booleans, Floats, Plans
from sweeps.memory_odds import MemoryOdds
from sweeps.planner.plans.space import MOST_ZERO_STAGE

MEMORY_KNOBS = {"recompute": len(RECOMPUTES), "zero_stage": MOST_ZERO_STAGE + 1, "schedule": len(SCHEDULES)}
WHOLE_SHARE = 0.5  # of the variance of the error: that of the part which all plans share
KIND_SHARE = (1 - WHOLE_SHARE) / len(MEMORY_KNOBS)
PRIOR = np.array([WHOLE_SHARE, *[KIND_SHARE] * sum(MEMORY_KNOBS.values())])
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

    Before any trial it is what published runs of the trainer say (`MemoryOdds`).

    Attributes:
        mean: of all parts, in units of the spread of published runs around their mean, (parts,).
        covariance: of them, (parts, parts).
    """

    trainer: str
    mean: Floats
    covariance: Floats

    @classmethod
    def fit(cls, seen: MemorySeen, trainer: str) -> MemoryFit:
        is_exact = ~seen.is_bound
        exact = np.full(is_exact.sum(), NOISE)
        fit = cls._of(trainer, seen.plans.rows(is_exact), seen.ratios[is_exact], exact)
        if is_exact.all():
            return fit
        # What ran out of memory needed at least its bound; where more was expected anyway, it says nothing new.
        expected, _ = fit.ratio(seen.plans)
        values = np.where(seen.is_bound, np.maximum(expected, seen.ratios + BEYOND), seen.ratios)
        return cls._of(trainer, seen.plans, values, np.where(seen.is_bound, NOISE_BEYOND, NOISE))

    @classmethod
    def _of(cls, trainer: str, plans: Plans, ratios: Floats, noise: Floats) -> MemoryFit:
        usual, spread = _published(trainer, plans)
        # Linear regression with a normal prior: each row is weighted by its noise, and the prior's precision is added.
        rows = _parts(plans) * (spread / noise)[:, None]
        covariance = np.linalg.inv(np.diag(1.0 / PRIOR) + rows.T @ rows)
        return cls(trainer, covariance @ (rows.T @ ((ratios - usual) / noise)), covariance)

    def ratio(self, plans: Plans) -> tuple[Floats, Floats]:
        """Mean and standard deviation of that logarithm for other plans, (n,)."""
        rows, (usual, spread) = _parts(plans), _published(self.trainer, plans)
        # The diagonal of rows C rows' alone; what is left out of it is the noise, below which no plan is known.
        variance = ((rows @ self.covariance) * rows).sum(axis=1)
        return usual + spread * (rows @ self.mean), np.maximum(spread * np.sqrt(variance), NOISE)

    def of_another_kind(self, published: MemoryOdds) -> MemoryOdds:
        """What is known of plans of kinds that were not tried, beside what published runs say of them."""
        mean, spread = published.needed.mean, published.needed.stdev
        known = float(self.mean[0]), sqrt(float(self.covariance[0, 0]) + 1 - WHOLE_SHARE)
        return MemoryOdds(NormalDist(mean + spread * known[0], spread * known[1]))

    def probability(self, plans: Plans, predicted_bytes: Floats, memory_bytes: Floats) -> Floats:
        """Return the probability that each plan fits, (n,)."""
        mean, spread = self.ratio(plans)
        # A plan fits if log(needed / predicted) is at most log(memory / predicted).
        return cumulative((np.log(memory_bytes / predicted_bytes) - mean) / spread)


def _published(trainer: str, plans: Plans) -> tuple[Floats, Floats]:
    """Mean and spread of that logarithm on published runs of the trainer, by the devices of each plan, (n,)."""
    sizes, places = np.unique(plans.world_size, return_inverse=True)
    needed = [MemoryOdds.of(trainer, int(size)).needed for size in sizes]
    both = np.array([(one.mean, one.stdev) for one in needed], dtype=np.float64).reshape(-1, 2)[places]
    return both[:, 0], both[:, 1]


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
