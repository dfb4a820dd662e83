"""What rows that were left out say of every prediction: how wide intervals are, and what lies outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.measured_rows import MeasuredRow
from sweeps.confidence.interval import SHARE, Interval, interval_around, outside_of, sizes_of
from sweeps.confidence.traits import traits_of
from sweeps.confidence.validated import Range, Validated
from sweeps.confidence.width import width_of

Floats = NDArray[np.float64]
MOST_PAIRS = 400


def learned(rows: Sequence[MeasuredRow], ratios: Floats) -> Validated:
    """What these rows say, every table as much as any other.

    Args:
        ratios: log of predicted over measured of every row, by constants fitted without it, (n,).
    """
    usual = ratios / [_width(row, seen) for row, seen in zip(rows, _seen_without(rows), strict=True)]
    return _with_errors(_seen(rows, [sizes_of(row.run.setup) for row in rows]), rows, usual)


def intervals(rows: Sequence[MeasuredRow], ratios: Floats) -> list[Interval]:
    """The interval of each row that rows of other tables and machines make around the prediction without it."""
    without = _seen_without(rows)
    usual = ratios / [_width(row, seen) for row, seen in zip(rows, without, strict=True)]
    found: dict[int, Interval] = {}
    for members, others in _left_out(rows):
        known = _with_errors(without[members[0]], [rows[index] for index in others], usual[others])
        for index in members:
            row, seconds = rows[index], rows[index].seconds * float(np.exp(ratios[index]))
            found[index] = interval_around(seconds, row.run.setup, row.run.implementation.name, known)
    return [found[index] for index in range(len(rows))]


def _left_out(rows: Sequence[MeasuredRow]) -> Iterator[tuple[list[int], list[int]]]:
    """Indices of the rows of each table, and of those on machines that it has no rows on."""
    for table in dict.fromkeys(row.table for row in rows):
        machines = {row.machine for row in rows if row.table == table}
        members = [index for index, row in enumerate(rows) if row.table == table]
        yield members, [index for index, row in enumerate(rows) if row.machine not in machines]


def _seen_without(rows: Sequence[MeasuredRow]) -> list[Validated]:
    """For each row, what there was to see without its table and machines."""
    sizes, found = [sizes_of(row.run.setup) for row in rows], dict[int, Validated]()
    for members, others in _left_out(rows):
        seen = _seen([rows[index] for index in others], [sizes[index] for index in others])
        found |= dict.fromkeys(members, seen)
    return [found[index] for index in range(len(rows))]


def _width(row: MeasuredRow, seen: Validated) -> float:
    setup = row.run.setup
    return width_of(setup, len(outside_of(setup, row.run.implementation.name, seen)))


def _seen(rows: Sequence[MeasuredRow], sizes: Sequence[Mapping[str, float]]) -> Validated:
    """What the rows were, without what their errors say."""
    by_trainer: dict[str, list[Mapping[str, float]]] = {}
    traits: dict[str, set[str]] = {}
    for row, of_row in zip(rows, sizes, strict=True):
        by_trainer.setdefault(row.run.implementation.name, []).append(of_row)
        traits.setdefault(row.run.implementation.name, set()).update(traits_of(row.run.setup))
    return Validated(
        low=1.0,
        high=1.0,
        rivals=0.0,
        rows=len(rows),
        tables=len({row.table for row in rows}),
        devices=tuple(sorted({row.run.setup.cluster.device.name for row in rows})),
        trainers={name: _ranges(by_trainer[name]) for name in sorted(by_trainer)},
        traits={name: tuple(sorted(traits[name])) for name in sorted(traits)},
    )


def _with_errors(known: Validated, rows: Sequence[MeasuredRow], usual: Floats) -> Validated:
    """The same with how far predictions were off.

    Args:
        usual: log of predicted over measured, over how wide the row's interval is, (n,).
    """
    low, high = _quantiles(-usual, _table_weights(rows))
    found = {"low": float(np.exp(low)), "high": float(np.exp(high)), "rivals": _rivals(rows, usual)}
    return known.model_copy(update={name: round(value, 4) for name, value in found.items()})


def _table_weights(rows: Sequence[MeasuredRow]) -> Floats:
    """A weight for every row, (n,): all rows of a table weigh 1 together."""
    sizes = Counter(row.table for row in rows)
    return np.array([1 / sizes[row.table] for row in rows])


def _quantiles(logs: Floats, weights: Floats) -> tuple[float, float]:
    """The values that a tenth of the weight lies below, and above."""
    edge = (1 - SHARE) / 2
    return _quantile(logs, weights, edge), _quantile(logs, weights, 1 - edge)


def _quantile(values: Floats, weights: Floats, share: float) -> float:
    order = np.argsort(values)
    below = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    return float(np.interp(share, below, values[order]))


def _rivals(rows: Sequence[MeasuredRow], usual: Floats) -> float:
    """How far the errors of two rows of one series are apart, in four pairs of five, every table weighing the same."""
    series = np.array([row.series for row in rows])
    by_table: dict[str, list[Floats]] = {}
    for name in dict.fromkeys(series.tolist()):
        of_series = np.flatnonzero(series == name)
        by_table.setdefault(rows[of_series[0]].table, []).append(_apart(usual[of_series]))
    pairs = [np.concatenate(apart) for apart in by_table.values()]
    known = [apart for apart in pairs if len(apart)]
    weights = [np.full(len(apart), 1 / len(apart)) for apart in known]
    return _quantile(np.concatenate(known), np.concatenate(weights), SHARE) if known else 0.0


def _apart(ratios: Floats) -> Floats:
    """The differences of all pairs, or of evenly chosen ones where there are many."""
    first, second = np.triu_indices(len(ratios), 1)
    every: Floats = np.abs(ratios[first] - ratios[second])
    return every[:: max(1, len(every) // MOST_PAIRS)]


def _ranges(sizes: Sequence[Mapping[str, float]]) -> dict[str, Range]:
    every = {name: [of_row[name] for of_row in sizes] for name in sizes[0]}
    return {name: Range(lowest=_rounded(min(values)), highest=_rounded(max(values))) for name, values in every.items()}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if value < 1000 else float(round(value))
