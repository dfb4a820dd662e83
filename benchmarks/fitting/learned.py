"""What rows that were left out say of every prediction: how wide intervals are, and what lies outside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.measured_rows import MeasuredRow, series_weights
from sweeps.confidence.interval import SHARE, Interval, interval_around, sizes_of
from sweeps.confidence.kinds import KINDS, kind_of
from sweeps.confidence.validated import Errors, Range, Validated

Floats = NDArray[np.float64]
WIDENING = 1.3
"""Assumed: a plan outside of what was validated is off by so much more, for each of at most two sides."""

COMMON_TABLES = 2
"""What is known of a kind counts as much as so many tables of all kinds do."""

UNSEEN = 1.5
"""Assumed: a kind that no row shows is off by so much more than all rows together."""

MOST_PAIRS = 400


def learned(rows: Sequence[MeasuredRow], ratios: Floats, stretch: float = 1.0) -> Validated:
    """What these rows say.

    Args:
        ratios: log of predicted over measured of every row, by constants fitted without it, (n,).
        stretch: factor on every width.
    """
    kinds = np.array([kind_of(row.run.setup) for row in rows])
    weights = series_weights(rows)
    common = _quantiles(-ratios, weights)
    trainers = sorted({row.run.implementation.name for row in rows})
    return Validated(
        widening=WIDENING,
        errors={kind: _errors(rows, ratios, weights, kinds == kind, common, stretch) for kind in KINDS},
        devices=tuple(sorted({row.run.setup.cluster.device.name for row in rows})),
        trainers={name: _ranges([row for row in rows if row.run.implementation.name == name]) for name in trainers},
    )


def intervals(rows: Sequence[MeasuredRow], ratios: Floats, stretch: float = 1.0) -> list[Interval]:
    """The interval of each row that rows of other tables and machines make around the prediction without it."""
    found: dict[int, Interval] = {}
    for table in dict.fromkeys(row.table for row in rows):
        machines = {row.machine for row in rows if row.table == table}
        others = np.array([row.machine not in machines for row in rows])
        known = learned([row for row, other in zip(rows, others, strict=True) if other], ratios[others], stretch)
        for index, row in enumerate(rows):
            if row.table == table:
                seconds = row.seconds * float(np.exp(ratios[index]))
                found[index] = interval_around(seconds, row.run.setup, row.run.implementation.name, known)
    return [found[index] for index in range(len(rows))]


def coverage(rows: Sequence[MeasuredRow], found: Sequence[Interval]) -> float:
    """Share of the rows whose measurement lies in its interval, series weighed."""
    inside = [each.low_seconds <= row.seconds <= each.high_seconds for row, each in zip(rows, found, strict=True)]
    return float(np.average(inside, weights=series_weights(rows)))


def calibrated_stretch(rows: Sequence[MeasuredRow], ratios: Floats) -> float:
    """The factor on every width with which `SHARE` of the rows lie inside."""
    low, high = 0.6, 2.0
    for _ in range(5):
        middle = (low * high) ** 0.5
        if coverage(rows, intervals(rows, ratios, middle)) < SHARE:
            low = middle
        else:
            high = middle
    return high


def _errors(
    rows: Sequence[MeasuredRow],
    ratios: Floats,
    weights: Floats,
    of_kind: NDArray[np.bool_],
    common: tuple[float, float],
    stretch: float,
) -> Errors:
    members = [row for row, belongs in zip(rows, of_kind, strict=True) if belongs]
    tables = len({row.table for row in members})
    own = _quantiles(-ratios[of_kind], weights[of_kind]) if tables else (UNSEEN * common[0], UNSEEN * common[1])
    share = tables / (tables + COMMON_TABLES) if tables else 1.0
    low, high = (stretch * (share * mine + (1 - share) * every) for mine, every in zip(own, common, strict=True))
    rivals = _rivals(rows, ratios) if len(members) < 2 else _rivals(members, ratios[of_kind])
    return Errors(
        low=round(float(np.exp(low)), 4),
        high=round(float(np.exp(high)), 4),
        rivals=round(rivals, 4),
        rows=len(members),
        tables=tables,
    )


def _quantiles(logs: Floats, weights: Floats) -> tuple[float, float]:
    """The values that a tenth of the weight lies below, and above."""
    order = np.argsort(logs)
    below = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    edge = (1 - SHARE) / 2
    low, high = np.interp([edge, 1 - edge], below, logs[order])
    return float(low), float(high)


def _rivals(rows: Sequence[MeasuredRow], ratios: Floats) -> float:
    """How far the errors of two rows of one series are apart, in four pairs of five."""
    series = np.array([row.series for row in rows])
    apart = [_apart(ratios[series == name]) for name in dict.fromkeys(series.tolist())]
    pairs = np.concatenate(apart) if apart else np.zeros(0)
    return float(np.quantile(pairs, SHARE)) if len(pairs) else 0.0


def _apart(ratios: Floats) -> Floats:
    """The differences of all pairs, or of evenly chosen ones where there are many."""
    first, second = np.triu_indices(len(ratios), 1)
    every: Floats = np.abs(ratios[first] - ratios[second])
    return every[:: max(1, len(every) // MOST_PAIRS)]


def _ranges(rows: Sequence[MeasuredRow]) -> dict[str, Range]:
    sizes = [sizes_of(row.run.setup) for row in rows]
    return {
        name: Range(
            lowest=float(f"{min(s[name] for s in sizes):.4g}"), highest=float(f"{max(s[name] for s in sizes):.4g}")
        )
        for name in sizes[0]
    }
