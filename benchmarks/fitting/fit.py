"""One fit of all constants to all published rows, and one without each table and its machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.fitting.constants import constants_with, fitted_constants, prior_values
from benchmarks.left_out import LeftOutRow
from benchmarks.measured_rows import MeasuredRow, series_weights
from calibrate.measured_runs import PricedRuns
from calibrate.robust_fit import (
    Constant,
    Values,
    coordinates_of,
    linear_step,
    refit,
    slopes,
    values_at,
)
from sweeps.confidence.interval import Interval

SMALLEST_GAIN = 2e-3
"""A step that earns less changes no error in its first digits, and each takes as long as forty times all rows."""


@dataclass(frozen=True)
class Fit:
    """What the rows make of the constants.

    Attributes:
        values: every constant by name.
    """

    rows: Sequence[MeasuredRow]
    values: dict[str, float]

    @cached_property
    def priced(self) -> PricedRuns:
        return PricedRuns([row.run for row in self.rows])

    def log_ratios(self, values: Values | None = None) -> NDArray[np.float64]:
        """Log of predicted over measured of every row, (n,)."""
        chosen = self.values if values is None else values
        return self.priced.log_ratios(lambda setting: constants_with(chosen, setting))

    def errors(self, values: Values | None = None) -> NDArray[np.float64]:
        """Relative errors, (n,)."""
        return np.expm1(self.log_ratios(values))


def fit(rows: Sequence[MeasuredRow]) -> Fit:
    """All constants, fitted to all rows."""
    begun = Fit(rows, prior_values())
    weights = series_weights(rows)
    return Fit(rows, refit(begun.log_ratios, _constants(), prior_values(), None, weights, SMALLEST_GAIN))


def values_without(found: Fit) -> dict[str, dict[str, float]]:
    """For each table, the constants by name that are fitted without its rows and without all rows of its machines."""
    # The fits without some rows end close to the fit to all, so that its derivatives serve all of them.
    slope = slopes(found.log_ratios, _constants(), found.values)
    left, weights = found.log_ratios(), series_weights(found.rows)
    now, rest = (coordinates_of(_constants(), values) for values in (found.values, prior_values()))
    by_machines: dict[frozenset[str], dict[str, float]] = {}
    by_table = {}
    for table in dict.fromkeys(row.table for row in found.rows):
        machines = frozenset(row.machine for row in found.rows if row.table == table)
        if machines not in by_machines:
            kept = weights * np.array([row.machine not in machines for row in found.rows])
            stepped = linear_step(found.log_ratios, _constants(), left, slope, now, rest, kept)
            by_machines[machines] = found.values if stepped is None else values_at(_constants(), stepped.now)
        by_table[table] = by_machines[machines]
    return by_table


def left_out_ratios(found: Fit, without: Mapping[str, Values]) -> NDArray[np.float64]:
    """Log of predicted over measured of every row, (n,), by the constants that were fitted without its table."""
    ratios = np.zeros(len(found.rows))
    priced: dict[tuple[float, ...], NDArray[np.float64]] = {}
    for table, values in without.items():
        of_table = np.array([row.table == table for row in found.rows])
        key = tuple(values.values())
        if key not in priced:
            priced[key] = found.log_ratios(values)
        ratios[of_table] = priced[key][of_table]
    return ratios


def left_out_rows(
    found: Fit, predicted: NDArray[np.float64], ratios: NDArray[np.float64], around: Sequence[Interval]
) -> list[LeftOutRow]:
    """Every row with its predictions.

    Args:
        predicted: seconds of a step of every row by the constants of the tree, (n,).
        ratios: log of predicted over measured of every row, by constants fitted without it, (n,).
        around: the interval of each.
    """
    without = found.priced.measured * np.exp(ratios)
    return [
        LeftOutRow(
            place=row.place,
            table=row.table,
            series=row.series,
            machine=row.machine,
            layout=row.run.setup.label,
            measured_s=row.seconds,
            predicted_s=float(seconds),
            left_out_s=float(left_out),
            low_s=interval.low_seconds,
            high_s=interval.high_seconds,
        )
        for row, seconds, left_out, interval in zip(found.rows, predicted, without, around, strict=True)
    ]


def _constants() -> list[Constant]:
    return [each.constant for each in fitted_constants()]
