"""The lesson of the trials about the machine: a posterior over how far each plan's step is from its prediction.

The logarithm of measured over predicted is taken to be a sum of: one factor for each term of the step, one for each
constant of the cost model, and a remainder that varies with the plan's knobs (a Gaussian process). All have normal
priors around "the prediction is right", so that the first measurements already move every other plan's expectation.
The sum of terms is linearised around the best factors so far, as in a Gauss-Newton step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

import numpy as np

from conf.types.schema import MOST_SEQUENCES
from sweeps.search.layouts.priced import CONSTANTS, Priced
from train_core.axes import MEASURED_TERMS, PREDICTED_TERMS, WORLD
from train_core.costs.setting import Floats, Integers, Plans
from train_core.costs.terms import STEP_TERMS

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
SMOOTH_SPREAD = 0.05  # of the part of the remainder that varies slowly with the sizes
SHARD_SPREAD = 0.08  # of the part that each pair of tensor size and micro-batch has of its own
KNOB_SPREAD = 0.04  # of the part that each value of each of REMAINDER_KNOBS has of its own
REMAINDER_KNOBS = ("pipeline_parallel_size", "recompute", "schedule", "zero_stage", "sequence_parallel")
REMAINDER_SCALES = {1.0: 0.7, 2.5: 0.3}
"""Factors on SMOOTH_SPREAD, SHARD_SPREAD and KNOB_SPREAD, with the probability of each before the first trial. Where
the trials go on to surprise the cost model, they speak for the larger one, and the search looks for longer."""
LENGTHS = {
    "tensor_parallel_size": 2.0,
    "pipeline_parallel_size": 3.0,
    "micro_batch_size": 2.0,
    "virtual_pipeline_size": 3.0,
    "data_parallel_size": 3.0,
    "context_parallel_size": 3.0,
}
"""Doublings of a size over which the smooth part changes."""
PARTS = {term: of for term, of in PREDICTED_TERMS.items() if term != MEASURED_TERMS[WORLD]}
"""The predicted terms of each part that a measured breakdown tells apart. What is left of it, waiting for all ranks, is
of several terms."""
PART_NOISE = 0.1  # of a part of the slowest rank's step, whose waits are in part for other ranks
NUM_ITERATIONS = 4
NUM_FACTORS = len(STEP_TERMS) + len(CONSTANTS) + 1
PRIOR = np.array([*TERM_SPREADS.values(), *[CONSTANT_SPREAD] * len(CONSTANTS), WHOLE_SPREAD]) ** 2


@dataclass(frozen=True, slots=True)
class Seen:
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

    def rows(self, selection: Integers) -> Seen:
        columns = (self.log_seconds[selection], self.noise[selection], self.log_parts[selection])
        return Seen(self.priced.rows(selection), *columns)


@dataclass(frozen=True, slots=True)
class Surrogate:
    """A fitted posterior.

    Attributes:
        factors: logarithms of the factors of terms, of constants, and of the whole.
        inverse: of the Cholesky factor of the measurements' covariance.
        derivatives: of each measurement by the factors.
        scale: the one of REMAINDER_SCALES that the measurements speak for.
        evidence: logarithm of the probability density of the measurements with it, but for a constant.
    """

    seen: Seen
    factors: Floats
    weights: Floats
    inverse: Floats
    derivatives: Floats
    scale: float
    evidence: float

    @classmethod
    def fit(cls, seen: Seen) -> Surrogate:
        """The posterior with the likeliest scale of the remainder."""
        found = [cls._with_scale(seen, scale) for scale in REMAINDER_SCALES]
        return max(found, key=lambda each: each.evidence + log(REMAINDER_SCALES[each.scale]))

    @classmethod
    def _with_scale(cls, seen: Seen, scale: float) -> Surrogate:
        parts, log_parts = _parts_alone(seen)
        measured = np.concatenate([seen.log_seconds, log_parts])
        remainder = np.diag(np.concatenate([seen.noise, np.full(len(log_parts), PART_NOISE)]) ** 2)
        steps = slice(len(seen.log_seconds))
        remainder[steps, steps] += scale**2 * _remainder(seen.priced.plans, seen.priced.plans)
        factors, evidence = np.zeros(NUM_FACTORS), 0.0
        for _ in range(NUM_ITERATIONS):
            of_steps, of_parts = _linearise(seen.priced, factors), _linearise(parts, factors)
            mean, rows = (np.concatenate(pair) for pair in zip(of_steps, of_parts, strict=True))
            # The measurements' covariance is the remainder's and the factors' prior P seen through the derivatives J: J
            # P J'. Around the last factors x the model is mean + J (factors - x), so that measured - mean + J x is what
            # J factors explains.
            inverse = np.linalg.inv(np.linalg.cholesky(remainder + (rows * PRIOR) @ rows.T))
            whitened = inverse @ (measured - mean + rows @ factors)
            # The logarithm of a normal density: the inverse factor's diagonal has that of one over the root of the
            # determinant, less half of the squared residuals.
            evidence = float(np.log(np.diag(inverse)).sum() - whitened @ whitened / 2)
            weights = inverse.T @ whitened
            # The posterior mean, P J' K^-1 residual, with K the covariance of the measurements.
            factors = PRIOR * (rows.T @ weights)
        return cls(seen, factors, weights, inverse, rows, scale, evidence)

    @property
    def is_surprised(self) -> bool:
        """True if the measurements are farther from the cost model than was expected of them."""
        return self.scale == max(REMAINDER_SCALES)

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
        alone = self.scale**2 * _remainder(plans.plans, plans.plans)
        covariance: Floats = alone + (rows * PRIOR) @ rows.T - explained.T @ explained
        return mean, covariance

    def belief(self, plans: Priced) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the logarithm of each of these plans' seconds, (n,)."""
        mean, rows, explained = self._explained(plans)
        # As `joint`, with the diagonal alone, since a full covariance of all candidates would be far too large.
        alone = self.scale**2 * _REMAINDER_VARIANCE
        variance = (rows**2 * PRIOR).sum(axis=1) + alone - (explained**2).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, 1e-8))

    def _explained(self, plans: Priced) -> tuple[Floats, Floats, Floats]:
        """The mean, its derivatives by the factors, and a root of what the measurements take off the covariance."""
        mean, rows = _linearise(plans, self.factors)
        # The covariance of the remainder with that of each measurement; parts of steps have none.
        near = np.zeros((len(plans), len(self.weights)))
        near[:, : len(self.seen.log_seconds)] = self.scale**2 * _remainder(plans.plans, self.seen.priced.plans)
        # A Gaussian process: the prior covariance of the plans, less what goes together with the measurements.
        explained = self.inverse @ (near + (rows * PRIOR) @ self.derivatives.T).T
        return mean + near @ self.weights, rows, explained


def _parts_alone(seen: Seen) -> tuple[Priced, Floats]:
    """Every measured part of a step as a measurement of its own: of a plan with no other terms."""
    number, part = np.nonzero(np.isfinite(seen.log_parts))
    of_part = np.array([[name in names for name in STEP_TERMS] for names in PARTS.values()])
    plans = seen.priced.rows(number)
    # All other terms become 0, so that the formulas of a whole step hold for its part.
    return replace(plans, terms=plans.terms * of_part[part]), seen.log_parts[number, part]


_REMAINDER_VARIANCE = SMOOTH_SPREAD**2 + SHARD_SPREAD**2 + len(REMAINDER_KNOBS) * KNOB_SPREAD**2


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


def _remainder(left: Plans, right: Plans) -> Floats:
    """Covariance of what no factor explains, between the plans of the left and those of the right."""
    sizes, others = _sizes(left), _sizes(right)
    # Squared distances through a matrix product, which is much faster than one subtraction after the other.
    squares = (sizes**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :] - 2.0 * sizes @ others.T
    covariance: Floats = SMOOTH_SPREAD**2 * np.exp(-0.5 * np.maximum(squares, 0.0))
    covariance += SHARD_SPREAD**2 * (_shards(left)[:, None] == _shards(right)[None, :])
    for name in REMAINDER_KNOBS:
        covariance += KNOB_SPREAD**2 * (getattr(left, name)[:, None] == getattr(right, name)[None, :])
    return covariance


def _sizes(plans: Plans) -> Floats:
    """Each size in units of its length, (n, sizes)."""
    return np.stack([np.log2(getattr(plans, name)) / length for name, length in LENGTHS.items()], axis=1)


def _shards(plans: Plans) -> Integers:
    """A number for each pair of tensor size and micro-batch, (n,)."""
    return plans.tensor_parallel_size * MOST_SEQUENCES + plans.micro_batch_size
