"""Latency and bandwidth of a link from the times of collectives and transfers: alpha-beta."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rates.record import PATTERNS, LinkTime, Pattern

Floats: TypeAlias = NDArray[np.float64]
NUM_REWEIGHTINGS = 30
SMALLEST_RESIDUAL = 1e-3
"""Rows that fit better than this weigh no more: the weight of a perfect fit would be infinite."""


class LinkFit(NamedTuple):
    """A link as the cost model takes it.

    Attributes:
        error: median of the relative errors that the fit leaves.
    """

    latency_seconds: float
    bandwidth_bytes_per_second: float
    error: float


def fit_link(times: Sequence[LinkTime]) -> LinkFit:
    """The one latency and bandwidth that stand for all patterns: the medians over the patterns."""
    fits = list(fit_patterns(times).values())
    latency = statistics.median(fit.latency_seconds for fit in fits)
    bandwidth = statistics.median(fit.bandwidth_bytes_per_second for fit in fits)
    return LinkFit(latency, bandwidth, _error(_relative(times), latency, 1 / bandwidth))


def fit_patterns(times: Sequence[LinkTime]) -> dict[Pattern, LinkFit]:
    """Every pattern alone: the latency and bandwidth that leave the least relative errors, outliers discounted.

    A gather or a scatter of B bytes over n ranks takes (n-1) latencies and B (n-1)/n bytes, an all-reduce twice that,
    a transfer one latency and B bytes. Source: the ring algorithms, as in `costs.collectives`.
    """
    by_pattern = {pattern: [time for time in times if time.pattern == pattern] for pattern in PATTERNS}
    return {pattern: _fit(chosen) for pattern, chosen in by_pattern.items() if chosen}


def _fit(times: Sequence[LinkTime]) -> LinkFit:
    relative = _relative(times)
    latency, seconds_per_byte = _least_absolute(relative)
    return LinkFit(latency, 1 / seconds_per_byte, _error(relative, latency, seconds_per_byte))


def _relative(times: Sequence[LinkTime]) -> Floats:
    """Latencies and bytes of each time, over the seconds measured, (n, 2): a perfect fit makes them add up to 1."""
    return np.array([[term / time.seconds.median for term in _terms(time)] for time in times])


def _error(relative: Floats, latency: float, seconds_per_byte: float) -> float:
    return float(np.median(np.abs(relative @ np.array([latency, seconds_per_byte]) - 1)))


def _terms(time: LinkTime) -> tuple[float, float]:
    """The number of latencies, and the bytes at full bandwidth."""
    if time.pattern == "transfer":
        return 1.0, float(time.num_bytes)
    passes = 2 if time.pattern == "all_reduce" else 1
    others = time.num_ranks - 1
    return float(passes * others), passes * time.num_bytes * others / time.num_ranks


def _least_absolute(relative: Floats) -> tuple[float, float]:
    """Coefficients, neither negative, for which the rows are nearest to 1 in the sum of absolute differences."""
    # Least squares over and over, each row weighted by the reciprocal of what it last left (iterative reweighting). The
    # sum of absolute differences lets outliers count for less than their squares would.
    weights = np.ones(len(relative))
    latency = per_byte = 0.0
    for _ in range(NUM_REWEIGHTINGS):
        latency, per_byte = _non_negative_least_squares(relative, weights)
        left = np.abs(relative @ np.array([latency, per_byte]) - 1)
        weights = 1 / np.maximum(left, SMALLEST_RESIDUAL)
    if per_byte == 0:  # only latency shows: the bandwidth is at least the highest rate that was seen
        per_byte = 1 / float(relative[:, 1].max())
    return latency, per_byte


def _non_negative_least_squares(relative: Floats, weights: Floats) -> tuple[float, float]:
    scaled, target = relative * np.sqrt(weights)[:, None], np.sqrt(weights)
    both = np.linalg.lstsq(scaled, target, rcond=None)[0]
    if both.min() >= 0:
        return float(both[0]), float(both[1])
    # With two unknowns the best fit that is not negative has one of them at zero: the better of the two is taken.
    alone = [float(column @ target / (column @ column)) for column in scaled.T]
    left = [float(np.sum((alone[i] * scaled[:, i] - target) ** 2)) for i in range(2)]
    return (alone[0], 0.0) if left[0] < left[1] else (0.0, alone[1])
