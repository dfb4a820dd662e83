"""The lesson of the trials about the machine: a posterior over how far each plan's step is from its prediction.

The logarithm of measured over predicted is taken to be a sum of: one factor for each term of the step, one for each
constant of the cost model, and a remainder that varies with the plan's knobs (a Gaussian process). All have normal
priors around "the prediction is right", so that the first measurements already move every other plan's expectation.
The sum of terms is linearised around the best factors so far, as in a Gauss-Newton step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import comb, exp

import numpy as np

from costs.axes import MEASURED_TERMS, PREDICTED_TERMS, WORLD
from costs.setting import Floats, InColumns, Integers, Plans
from costs.terms import STEP_TERMS
from sweeps.search.layouts.priced import CONSTANTS, Priced

TERM_SPREADS = {
    "compute_seconds": 0.10,
    "tensor_seconds": 0.20,
    "pipeline_seconds": 0.40,
    "bubble_seconds": 0.15,
    "data_seconds": 0.40,
    "optimizer_seconds": 0.20,
    "waiting_seconds": 0.50,
}
"""How far a term may be off for reasons that no constant expresses, as the standard deviation of its logarithm.
Transfers and reductions, which a trainer may hide, are the least certain."""
CONSTANT_SPREAD = 0.25
WHOLE_SPREAD = 0.20  # of what all plans have in common
DOUBLING_SPREAD = 0.08  # of what one doubling of a size changes
LEVEL_SPREAD = 0.05  # of what each value of each of LEVELS has of its own
PAIR_SPREAD = 0.01  # of what each pair of values of two knobs has of its own
SMOOTH_SPREAD = 0.04  # of what varies slowly with all sizes together
SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "virtual_pipeline_size",
    "micro_batch_size",
    "context_parallel_size",
    "expert_parallel_size",
    "data_parallel_size",
)
LEVELS = ("recompute", "schedule", "zero_stage", "sequence_parallel")
RANGE = 4.0  # doublings over which what a size does is forgotten
LENGTH = 3.0  # doublings of any size over which the smooth part changes
TAIL = 4.0
"""Degrees of freedom: what each knob does, and what disturbs each measurement, has Student's distribution with as many.
So a knob of which nothing is known yet may do more than those that were tried."""
POOL = 10.0  # measurements' worth of the spreads above, beside what all knobs tell of how large errors are here
SURPRISING = 2.0  # times the variance that was expected of the remainder
PARTS = {term: of for term, of in PREDICTED_TERMS.items() if term != MEASURED_TERMS[WORLD]}
"""The predicted terms of each part that a measured breakdown tells apart. What is left of it, waiting for all ranks, is
of several terms."""
PART_NOISE = 0.1  # of a part of the slowest rank's step, whose waits are in part for other ranks
NUM_ITERATIONS = 10
NUM_FACTORS = len(STEP_TERMS) + len(CONSTANTS) + 1
PRIOR = np.array([*TERM_SPREADS.values(), *[CONSTANT_SPREAD] * len(CONSTANTS), WHOLE_SPREAD]) ** 2


@dataclass(frozen=True, slots=True)
class Seen(InColumns):
    """Measured steps.

    Attributes:
        log_seconds: logarithm of the measured seconds, (n,).
        noise: standard deviation of each, (n,).
        log_parts: logarithms of the measured seconds of each of PARTS, NaN where they were not measured, (n, parts).
    """

    priced: Priced
    log_seconds: Floats
    noise: Floats
    log_parts: Floats


@dataclass(frozen=True, slots=True)
class Surrogate:
    """A fitted posterior.

    Attributes:
        factors: logarithms of the factors of terms, of constants, and of the whole.
        inverse: of the Cholesky factor of the measurements' covariance.
        derivatives: of each measurement by the factors.
        scales: by which the variance of each part of the remainder is larger than was expected, (parts,).
    """

    seen: Seen
    factors: Floats
    weights: Floats
    inverse: Floats
    derivatives: Floats
    scales: Floats

    @classmethod
    def fit(cls, seen: Seen) -> Surrogate:
        parts, log_parts = _parts_alone(seen)
        measured = np.concatenate([seen.log_seconds, log_parts])
        usual = np.concatenate([seen.noise, np.full(len(log_parts), PART_NOISE)]) ** 2
        near, steps = np.array(list(_remainders(seen.priced.plans, seen.priced.plans))), len(seen.log_seconds)
        ranks, scales, noise = _ranks(seen.priced.plans), np.ones(len(near)), usual
        factors, surplus = np.zeros(NUM_FACTORS), np.zeros((len(measured), len(measured)))
        for _ in range(NUM_ITERATIONS):
            # Student's distribution is a normal one whose variance s has a prior. With the covariance K of a part of m
            # variables and the surplus W = w w' - C^-1 of the measurements' weights w and covariance C, the squares of
            # these variables, in units of the prior's variance, sum to s (m + tr(W K)): expectation maximisation.
            noise = (TAIL * usual + noise + noise**2 * np.diag(surplus)) / (TAIL + 1.0)
            squares = scales * (ranks + scales * np.tensordot(near, surplus[:steps, :steps], 2))
            common = (POOL + squares.sum()) / (POOL + ranks.sum())
            scales = (TAIL * common + squares) / (TAIL + ranks)
            of_steps, of_parts = _linearise(seen.priced, factors), _linearise(parts, factors)
            mean, rows = (np.concatenate(pair) for pair in zip(of_steps, of_parts, strict=True))
            covariance = np.diag(noise) + (rows * PRIOR) @ rows.T
            covariance[:steps, :steps] += np.tensordot(scales, near, 1)
            # The measurements' covariance is the remainder's and the factors' prior P seen through the derivatives J: J
            # P J'. Around the last factors x the model is mean + J (factors - x), so that measured - mean + J x is what
            # J factors explains.
            inverse = np.linalg.inv(np.linalg.cholesky(covariance))
            weights = inverse.T @ (inverse @ (measured - mean + rows @ factors))
            # The posterior mean, P J' K^-1 residual, with K the covariance of the measurements.
            factors = PRIOR * (rows.T @ weights)
            surplus = np.outer(weights, weights) - inverse.T @ inverse
        return cls(seen, factors, weights, inverse, rows, scales)

    @property
    def is_surprised(self) -> bool:
        """True if the measurements are farther from the cost model than was expected of them."""
        return float(self.scales @ _VARIANCES) > SURPRISING * float(_VARIANCES.sum())

    def scaled_prediction(self, plans: Priced) -> Floats:
        """The logarithm of the step that the factors alone expect, (n,)."""
        return _scale_terms(plans, self.factors)[0]

    def terms(self) -> tuple[Floats, Floats]:
        """Logarithm of the factor on each term, averaged over the measured plans, and its standard deviation, (7,)."""
        # A term moves with its own factor, with each constant by its slope, and with the factor of the whole.
        unit = np.zeros((len(STEP_TERMS), NUM_FACTORS))
        unit[:, : len(STEP_TERMS)] = np.eye(len(STEP_TERMS))
        unit[:, len(STEP_TERMS) : -1] = self.seen.priced.slopes.mean(axis=0)
        unit[:, -1] = 1.0
        explained = self.inverse @ (self.derivatives * PRIOR) @ unit.T
        # The prior's variance less what the measurements explain of it.
        variance = (unit**2 * PRIOR).sum(axis=1) - (explained**2).sum(axis=0)
        return unit @ self.factors, np.sqrt(np.maximum(variance, 0.0))

    def joint(self, plans: Priced) -> tuple[Floats, Floats]:
        """Mean and covariance of the logarithms of all these plans' seconds together, (n,) and (n, n)."""
        mean, rows, explained = self._explained(plans)
        alone = self._remainder(plans.plans, plans.plans)
        covariance: Floats = alone + (rows * PRIOR) @ rows.T - explained.T @ explained
        return mean, covariance

    def belief(self, plans: Priced) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the logarithm of each of these plans' seconds, (n,)."""
        mean, rows, explained = self._explained(plans)
        # As `joint`, with the diagonal alone, since a full covariance of all candidates would be far too large.
        alone = float(self.scales @ _VARIANCES)
        variance = (rows**2 * PRIOR).sum(axis=1) + alone - (explained**2).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, 1e-8))

    def _explained(self, plans: Priced) -> tuple[Floats, Floats, Floats]:
        """The mean, its derivatives by the factors, and a root of what the measurements take off the covariance."""
        mean, rows = _linearise(plans, self.factors)
        # The covariance of the remainder with that of each measurement; parts of steps have none.
        near = np.zeros((len(plans), len(self.weights)))
        near[:, : len(self.seen.log_seconds)] = self._remainder(plans.plans, self.seen.priced.plans)
        # A Gaussian process: the prior covariance of the plans, less what goes together with the measurements.
        explained = self.inverse @ (near + (rows * PRIOR) @ self.derivatives.T).T
        return mean + near @ self.weights, rows, explained

    def _remainder(self, left: Plans, right: Plans) -> Floats:
        """Covariance of what no factor explains."""
        total = np.zeros((len(left), len(right)))
        for scale, part in zip(self.scales, _remainders(left, right), strict=True):
            total += scale * part
        return total


def _parts_alone(seen: Seen) -> tuple[Priced, Floats]:
    """Every measured part of a step as a measurement of its own: of a plan with no other terms."""
    number, part = np.nonzero(np.isfinite(seen.log_parts))
    of_part = np.array([[name in names for name in STEP_TERMS] for names in PARTS.values()])
    plans = seen.priced.rows(number)
    # All other terms become 0, so that the formulas of a whole step hold for its part.
    return replace(plans, terms=plans.terms * of_part[part]), seen.log_parts[number, part]


_WALK_VARIANCE = DOUBLING_SPREAD**2 / (2.0 - 2.0 * exp(-1.0 / RANGE))
_NUM_PAIRS = comb(len(SIZES) + len(LEVELS), 2)
_VARIANCES = np.array(
    [_WALK_VARIANCE] * len(SIZES) + [LEVEL_SPREAD**2] * len(LEVELS) + [SMOOTH_SPREAD**2, _NUM_PAIRS * PAIR_SPREAD**2]
)


def _linearise(priced: Priced, factors: Floats) -> tuple[Floats, Floats]:
    """The logarithm of the step with these factors, (n,), and its derivatives by them, (n, factors)."""
    mean, shares = _scale_terms(priced, factors)
    # The derivative of the logarithm of a sum is the mean of the terms' own, each by its share of the sum.
    by_constant = np.einsum("nk,nkc->nc", shares, priced.slopes)
    return mean, np.concatenate([shares, by_constant, np.ones((len(mean), 1))], axis=1)


def _scale_terms(priced: Priced, factors: Floats) -> tuple[Floats, Floats]:
    """The logarithm of the step with these factors, (n,), and each term's share of it, (n, terms)."""
    terms, constants, whole = np.split(factors, [len(STEP_TERMS), len(STEP_TERMS) + len(CONSTANTS)])
    seconds = priced.terms * np.exp(terms + priced.slopes @ constants)
    total = seconds.sum(axis=1)
    return np.log(total) + whole, seconds / total[:, None]


def _ranks(plans: Plans) -> Integers:
    """The number of variables by which these plans tell of each part of the remainder, (parts,)."""
    of_knobs = [len(np.unique(getattr(plans, name))) for name in (*SIZES, *LEVELS)]
    return np.array([*of_knobs, len(plans), len(plans)])


def _remainders(left: Plans, right: Plans) -> Iterator[Floats]:
    """Covariances of the parts of what no factor explains, between the plans of the left and those of the right."""
    smooth, equal = np.full((len(left), len(right)), SMOOTH_SPREAD**2), np.zeros((len(left), len(right)))
    for name in SIZES:
        # Sizes have few values, so that a look into a table of them is much faster than a power of every pair.
        (values, rows), (others, columns) = (
            np.unique(getattr(each, name), return_inverse=True) for each in (left, right)
        )
        doublings = np.abs(np.log2(values)[:, None] - np.log2(others)[None, :])
        smooth *= np.exp(-0.5 * (doublings / LENGTH) ** 2)[:, columns][rows]
        equal += (doublings == 0)[:, columns][rows]
        yield (_WALK_VARIANCE * np.exp(-doublings / RANGE))[:, columns][rows]
    for name in LEVELS:
        same = getattr(left, name)[:, None] == getattr(right, name)[None, :]
        equal += same
        yield LEVEL_SPREAD**2 * same
    yield smooth
    # Two plans share as many pairs of values as there are pairs among the knobs that they agree on.
    yield PAIR_SPREAD**2 / 2 * equal * (equal - 1.0)
