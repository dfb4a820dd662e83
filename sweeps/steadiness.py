"""Tells whether the timed steps of a run are those of a steady machine: one speed, no drift, no unusual width.

Two speeds and a drift are found by the share of the variance of log seconds that two clusters or a line explain; a run
that was disturbed otherwise has more variance than the runs beside it. Each is held against what chance alone makes of
as many normal values (a Monte Carlo test, as nothing is tabulated for so few).
Source: L. Engelman and J. A. Hartigan, "Percentage Points of a Test for Clusters", Journal of the American Statistical
Association 64 (1969), for the clusters; the line is that of least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

LEAST_STEPS = 5
"""Of fewer steps nothing is said."""
LEAST_RUNS = 5
"""Of fewer runs nobody knows what spread is usual on their machine."""
CHANCE = 0.01
"""How often each test calls steady steps disturbed, before `LEAST_RATIO` spares most of them."""
LEAST_RATIO = 1.15
"""Steps or peaks that differ by a smaller factor are a quiet machine's: intervals hold what they do."""
NUM_DRAWN = 20_000
MOST_DRAWN_STEPS = 60
"""What chance explains falls with the number of steps, so that the bounds of so many hold for more too."""
TWO_SPEEDS = "its steps ran at two speeds"
DRIFT = "its steps drifted"
WIDE = "its steps spread wider than those of the other runs"

FARTHEST = 3.5
"""Of the modified z-score, beyond which a value is an outlier. Source: B. Iglewicz and D. C. Hoaglin, "How to Detect
and Handle Outliers" (1993), who give 0.6745 too."""
NORMAL = 0.6745
"""The median absolute deviation of normal values over their standard deviation."""

Table = NDArray[numpy.float64]


class ChanceBounds(NamedTuple):
    """The values that chance alone exceeds with the probability `CHANCE`, of so many steps.

    Attributes:
        cluster_share, line_share: of the variance.
        variance: over the usual one, which is the median of many runs.
        usual_variance: of steps whose logarithms have a standard deviation of 1.
    """

    cluster_share: float
    line_share: float
    variance: float
    usual_variance: float


def disturbed_runs(runs: Sequence[Sequence[float]]) -> list[str]:
    """Return what disturbed each run, in words for people; empty if its steps are those of a steady machine.

    The slowest of every ten steps is left aside: a page fault or a garbage collection says nothing of the others.

    Args:
        runs: the seconds of the timed steps of each, in their order.
    """
    kept = [_without_slowest(numpy.log([run])) if len(run) >= LEAST_STEPS else None for run in runs]
    deviations = [
        float(steps.var()) / _bounds(len(run)).usual_variance
        for run, steps in zip(runs, kept, strict=True)
        if steps is not None
    ]
    usual = float(numpy.median(deviations)) if len(deviations) >= LEAST_RUNS else None
    return [
        "" if steps is None else _disturbance(steps, len(run), usual) for run, steps in zip(runs, kept, strict=True)
    ]


def late_ones(lateness: Sequence[float]) -> list[bool]:
    """Mark the values that lie far above the others; none of fewer than `LEAST_RUNS`.

    Nothing makes a machine faster than it is, so that low ones are none of them.

    Args:
        lateness: the logarithm of measured over predicted seconds of a step.
    """
    if len(lateness) < LEAST_RUNS:
        return [False] * len(lateness)
    middle = float(numpy.median(lateness))
    deviation = float(numpy.median(numpy.abs(numpy.asarray(lateness) - middle))) / NORMAL
    bound = max(FARTHEST * deviation, float(numpy.log(LEAST_RATIO)))
    return [late - middle > bound for late in lateness]


def _disturbance(kept: Table, num_steps: int, usual: float | None) -> str:
    """Return what disturbed one run; empty if nothing did.

    Args:
        usual: the variance of a single log step in the runs of this machine; None where there are too few.
    """
    if float(kept.max() - kept.min()) < numpy.log(LEAST_RATIO):
        return ""
    bounds = _bounds(num_steps)
    if float(_line_share(kept)[0]) > bounds.line_share:
        return DRIFT
    if float(_cluster_share(kept)[0]) > bounds.cluster_share:
        return TWO_SPEEDS
    is_wide = usual is not None and float(kept.var()) > bounds.variance * bounds.usual_variance * usual
    return WIDE if is_wide else ""


def _without_slowest(samples: Table) -> Table:
    """Every row without the slowest of its values, the others in their order."""
    num_kept = samples.shape[1] - max(1, samples.shape[1] // 10)
    chosen = numpy.sort(numpy.argsort(samples, axis=1, kind="stable")[:, :num_kept], axis=1)
    return numpy.take_along_axis(samples, chosen, axis=1)


def _cluster_share(samples: Table) -> Table:
    """The share of each row's variance that lies between two clusters, where it is divided for the largest share."""
    ordered = numpy.sort(samples - samples.mean(axis=1, keepdims=True), axis=1)
    size, below = samples.shape[1], numpy.arange(1, samples.shape[1])
    between = numpy.cumsum(ordered, axis=1)[:, :-1] ** 2 * size / (below * (size - below))
    share: Table = between.max(axis=1) / (ordered**2).sum(axis=1)
    return share


def _line_share(samples: Table) -> Table:
    """The share of each row's variance that a straight line over its order explains."""
    centred = samples - samples.mean(axis=1, keepdims=True)
    place = numpy.arange(samples.shape[1]) - (samples.shape[1] - 1) / 2
    share: Table = (centred @ place) ** 2 / ((place**2).sum() * (centred**2).sum(axis=1))
    return share


def _bounds(num_steps: int) -> ChanceBounds:
    return _drawn_bounds(min(num_steps, MOST_DRAWN_STEPS))


@lru_cache(maxsize=MOST_DRAWN_STEPS)
def _drawn_bounds(num_steps: int) -> ChanceBounds:
    drawn = _without_slowest(numpy.random.default_rng(num_steps).standard_normal((NUM_DRAWN, num_steps)))
    variance = drawn.var(axis=1)
    usual = float(numpy.median(variance))
    shares = _cluster_share(drawn), _line_share(drawn), variance / usual
    clusters, line, wide = (float(numpy.quantile(each, 1 - CHANCE)) for each in shares)
    return ChanceBounds(clusters, line, wide, usual)
