"""The expectation for every candidate, given what is known: its cost, the gain over the best, whether it fits."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from sweeps.search.layouts.memory_fit import MemoryFit, expected_improvement
from sweeps.search.layouts.observed import NOISE
from sweeps.search.layouts.priced import Priced, join_plans
from sweeps.search.layouts.surrogate import PARTS, Seen, Surrogate
from train_core.costs.setting import Floats, Integers, Plans

FEWEST_KEPT = 1500  # candidates that are looked at however many measurements there are
MOST_WORK = 5e7  # measurements squared times candidates
MOST_MEASUREMENTS = 128  # that the surrogate is fitted on: those with the best rates
LOST_JOB = 0.1  # what a job costs that runs out of memory, as a share of the best's cost
NUM_DRAWN_TOGETHER = 200  # the candidates of largest gain, of which the gain of all is estimated
NUM_DRAWS = 256
SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "virtual_pipeline_size", "micro_batch_size")
KNOBS_OF_KIND = ("schedule", "recompute", "zero_stage", "sequence_parallel")


@dataclass(frozen=True, slots=True)
class Outlook:
    """The candidates that are worth a look, in columns.

    Attributes:
        rows: their numbers.
        mean: of the logarithm of what they cost by the objective.
        spread: its standard deviation.
        fits: probability that they fit.
        runs: probability that they run, given the plans that failed.
        gain: by which share of the best each is expected to better it if it fits; never negative.
        best: logarithm of the cost of the best so far, in-flight trials included; infinite where there is none.
        expected_gain: by which share of the best one of them is expected to better it, if all were tried.
    """

    rows: Integers
    mean: Floats
    spread: Floats
    fits: Floats
    runs: Floats
    gain: Floats
    best: float
    expected_gain: float

    @property
    def worth(self) -> Floats:
        """The expected gain, less the cost of a job that may run out of memory."""
        return self.fits * self.gain - (1.0 - self.fits) * LOST_JOB


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured steps, and in which candidates they may be bettered.

    Attributes:
        seen: the measurements, n of them.
        to_cost: what to add to the logarithm of the seconds of each to have that of its cost, (n,).
    """

    seen: Seen
    to_cost: Floats

    def __len__(self) -> int:
        return len(self.to_cost)

    def best_ones(self) -> Measured:
        """The measurements of lowest cost."""
        chosen = np.argsort(self.seen.log_seconds + self.to_cost, kind="stable")[:MOST_MEASUREMENTS]
        return Measured(self.seen.rows(chosen), self.to_cost[chosen])

    def with_liars(self, plans: Priced, to_cost: Floats) -> Measured:
        """These and further plans, as if each had taken as long as is expected of it."""
        expected = Surrogate.fit(self.seen).belief(plans).mean
        seen = Seen(
            join_plans([self.seen.priced, plans]),
            np.concatenate([self.seen.log_seconds, expected]),
            np.concatenate([self.seen.noise, np.full(len(plans), NOISE)]),
            np.concatenate([self.seen.log_parts, np.full((len(plans), len(PARTS)), np.nan)]),
        )
        return Measured(seen, np.concatenate([self.to_cost, to_cost]))


def outlook(
    candidates: Priced, to_cost: Floats, open_rows: Integers, measured: Measured, memory: MemoryFit, failed: Plans
) -> Outlook:
    """Return what to expect of the candidates that are still open.

    Args:
        to_cost: as in `Measured`, of each candidate.
        open_rows: numbers of the candidates that were not tried.
        failed: plans that crashed or took too long; the nearer a candidate, the less is expected of it.
    """
    surrogate, best = Surrogate.fit(measured.seen), inf
    if len(measured):
        best = float((surrogate.belief(measured.seen.priced).mean + measured.to_cost).min())
    rows = _most_promising(surrogate, candidates, to_cost, open_rows)
    chosen = candidates.rows(rows)
    belief = surrogate.belief(chosen)
    mean = belief.mean + to_cost[rows]
    gain = expected_improvement(best, mean, belief.spread) if len(measured) else np.zeros(len(rows))
    runs = 1.0 - near_failures(chosen.plans, failed)
    fits = memory.probability(chosen)
    # The joint covariance grows with the square of the plans, so that only the best few are drawn together.
    promising = np.argsort(-(fits * runs * gain), kind="stable")[:NUM_DRAWN_TOGETHER]
    of_all = (
        inf
        if best == inf
        else _gain_of_all(surrogate, chosen.rows(promising), (to_cost[rows] - best)[promising], fits[promising])
    )
    return Outlook(rows, mean, belief.spread, fits, runs, gain * runs, best, of_all)


def _gain_of_all(surrogate: Surrogate, plans: Priced, to_loss: Floats, fits: Floats) -> float:
    """The expected gain of the best of these plans, whose costs go together.

    Args:
        to_loss: what to add to the logarithm of their seconds to have that of their cost over the best's, (n,).
    """
    if not len(plans):
        return 0.0
    mean, covariance = surrogate.joint(plans)
    # The same draws each time, so that the same trials always get the same answer.
    rng = np.random.default_rng(0)
    # Plans that are all but equal make the covariance singular but for rounding, which a little on the diagonal
    # outweighs.
    root = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(plans)))
    losses = (mean + to_loss)[:, None] + root @ rng.normal(size=(len(plans), NUM_DRAWS))
    # In each draw a plan fits or not by its probability; one that does not improves nothing.
    losses[rng.uniform(size=losses.shape) > fits[:, None]] = inf
    return float(np.maximum(0.0, -losses.min(axis=0)).mean())


def _most_promising(surrogate: Surrogate, candidates: Priced, to_cost: Floats, open_rows: Integers) -> Integers:
    """Select the open rows of lowest expected cost, as many as can be looked at closely."""
    # The variance of a candidate takes a product with a square matrix of all measurements.
    kept = max(FEWEST_KEPT, int(MOST_WORK / max(1, len(surrogate.weights)) ** 2))
    if len(open_rows) <= kept:
        return open_rows
    expected = (surrogate.scaled_prediction(candidates) + to_cost)[open_rows]
    chosen: Integers = open_rows[np.argpartition(expected, kept)[:kept]]
    return np.sort(chosen)


def near_failures(plans: Plans, failed: Plans) -> Floats:
    """Return how near each plan is to a failed one: 1 for the same, less with every doubling and other kind, (n,)."""
    nearest = np.full(len(plans), inf)
    for row in range(len(failed)):
        one = failed.rows(slice(row, row + 1))
        distance = np.zeros(len(plans))
        for name in SIZES:
            distance += (np.log2(getattr(plans, name)) - np.log2(getattr(one, name))) ** 2
        for name in KNOBS_OF_KIND:
            # Another kind counts as much as a doubling of a size.
            distance += getattr(plans, name) != getattr(one, name)
        nearest = np.minimum(nearest, distance)
    return np.exp(-nearest / 2)
