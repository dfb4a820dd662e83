"""One fit of all constants to all published rows, and one without each table and its clusters."""

from __future__ import annotations

from collections.abc import Sequence
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
    Floats,
    Values,
    coordinates_of,
    linear_optimum,
    refit,
    slopes,
    values_at,
)
from sweeps.confidence.interval import Interval


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
    return Fit(rows, refit(begun.log_ratios, _constants(), prior_values(), weights=series_weights(rows)))


def left_out_ratios(found: Fit) -> NDArray[np.float64]:
    """Log of predicted over measured of every row, (n,), by constants fitted without its table and its clusters."""
    # The fits without some rows end close to the fit to all, where log ratios are nearly linear in the constants.
    slope = slopes(found.log_ratios, _constants(), found.values)
    left, weights = found.log_ratios(), series_weights(found.rows)
    ratios = np.zeros(len(found.rows))
    without: dict[frozenset[str], NDArray[np.float64]] = {}
    for table in dict.fromkeys(row.table for row in found.rows):
        clusters = frozenset(row.cluster for row in found.rows if row.table == table)
        if clusters not in without:
            kept = np.array([row.cluster not in clusters for row in found.rows])
            without[clusters] = found.log_ratios(_values_near(found, left, slope, weights * kept))
        of_table = np.array([row.table == table for row in found.rows])
        ratios[of_table] = without[clusters][of_table]
    return ratios


def left_out_rows(found: Fit, ratios: NDArray[np.float64], around: Sequence[Interval]) -> list[LeftOutRow]:
    """Every row with its predictions.

    Args:
        ratios: log of predicted over measured of every row, by constants fitted without it, (n,).
        around: the interval of each.
    """
    fitted = found.priced.measured * np.exp(found.log_ratios())
    without = found.priced.measured * np.exp(ratios)
    return [
        LeftOutRow(
            place=row.place,
            table=row.table,
            series=row.series,
            cluster=row.cluster,
            layout=row.run.setup.label,
            measured_s=row.seconds,
            predicted_s=float(seconds),
            left_out_s=float(left_out),
            low_s=interval.low_seconds,
            high_s=interval.high_seconds,
        )
        for row, seconds, left_out, interval in zip(found.rows, fitted, without, around, strict=True)
    ]


def _values_near(found: Fit, left: Floats, slope: Floats, weights: Floats) -> dict[str, float]:
    """The best values for other weights, if log ratios were linear around the fit."""
    now, rest = coordinates_of(_constants(), found.values), coordinates_of(_constants(), prior_values())
    return values_at(_constants(), linear_optimum(_constants(), left, slope, now, rest, weights))


def _constants() -> list[Constant]:
    return [each.constant for each in fitted_constants()]
