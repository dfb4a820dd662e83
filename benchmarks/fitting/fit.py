"""One fit of all constants to all published rows, one without each table and its machines, source, and so on.

Calibrations on five rows of a table are replayed, begun without it: what they do to the error on the rest of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.fitting.constants import constants_with, fitted_constants, prior_values
from benchmarks.left_out import LeftOutRow, ReplayedCalibration
from benchmarks.levels import LEVELS, TABLE, Ends, groups_left_out
from benchmarks.published_rows import MeasuredRow, series_weights
from calibrate.refit_cluster import CONSTANTS, NUM_RUNS, Constants, PricedRuns, most_telling, present_values
from calibrate.robust_fit import Constant, Floats, LogRatios, Values, choose_constants, coordinates_of, refit, slopes
from costs.setting import Setting

SMALLEST_GAIN = 2e-3
"""A step that earns less changes no error in its first digits, and each takes as long as forty times all rows."""


@dataclass(frozen=True)
class ConstantsFit:
    """The constants as rows make them.

    Attributes:
        values: every constant by name.
    """

    rows: Sequence[MeasuredRow]
    values: dict[str, float]

    @cached_property
    def priced_runs(self) -> PricedRuns:
        return PricedRuns([row.run for row in self.rows])

    @cached_property
    def slope(self) -> Floats:
        """The change of the log ratios with a spread of each constant, (n, constants), which takes most of the time."""
        return slopes(self.log_ratios, _constants(), self.values)

    def log_ratios(self, values: Values | None = None) -> Floats:
        """Log of predicted over measured of every row, (n,)."""
        chosen = self.values if values is None else values
        return self.priced_runs.log_ratios(lambda setting: constants_with(chosen, setting))


def fit(rows: Sequence[MeasuredRow]) -> ConstantsFit:
    begun = ConstantsFit(rows, prior_values())
    weights = series_weights(rows)
    return ConstantsFit(rows, refit(begun.log_ratios, _constants(), prior_values(), None, weights, SMALLEST_GAIN))


def values_without(found: ConstantsFit, level: str = TABLE) -> dict[str, dict[str, float]]:
    """For each group of a level, the constants by name that are fitted without it; a table goes with its machines."""
    # The fits without some rows end close to the fit to all, so that its derivatives serve all of them.
    constants, left, weights = _constants(), found.log_ratios(), series_weights(found.rows)
    begun = coordinates_of(constants, found.values)

    def linear(values: Values) -> Floats:
        return left + found.slope @ (coordinates_of(constants, values) - begun)

    by_kept: dict[tuple[int, ...], dict[str, float]] = {}
    by_group = {}
    for members, kept in groups_left_out(found.rows, level):
        if (key := tuple(kept)) not in by_kept:
            of_kept = np.zeros(len(weights))
            of_kept[kept] = weights[kept]
            by_kept[key] = refit(linear, constants, prior_values(), found.values, of_kept)
        by_group[LEVELS[level](found.rows[members[0]])] = by_kept[key]
    return by_group


def left_out_ratios(found: ConstantsFit, without: Mapping[str, Values], level: str = TABLE) -> Floats:
    """Log of predicted over measured of every row, (n,), by the constants that were fitted without its group."""
    ratios = np.zeros(len(found.rows))
    priced: dict[tuple[float, ...], Floats] = {}
    for group, values in without.items():
        members = np.array([LEVELS[level](row) == group for row in found.rows])
        key = tuple(values.values())
        if key not in priced:
            priced[key] = found.log_ratios(values)
        ratios[members] = priced[key][members]
    return ratios


def left_out_rows(found: ConstantsFit, predicted: Floats, ratios: Floats, around: Sequence[Ends]) -> list[LeftOutRow]:
    """Every row with its predictions.

    Args:
        predicted: seconds of a step of every row by the constants of the tree, (n,).
        ratios: log of predicted over measured of every row, by constants fitted without it, (n,).
        around: the interval of each.
    """
    without = found.priced_runs.measured * np.exp(ratios)
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
            low_s=low,
            high_s=high,
        )
        for row, seconds, left_out, (low, high) in zip(found.rows, predicted, without, around, strict=True)
    ]


def _constants() -> list[Constant]:
    return [each.constant for each in fitted_constants()]


NUM_DRAWS = 5
FEWEST_ROWS = 4
MOST_ROWS = 60
"""The most rows of a table, taken evenly from a larger one: to know all of them would take minutes and say the same."""
NUM_PARTS = 5
"""With all other rows known means: each fifth of a table, by a fit to the four other fifths."""

Indices = NDArray[np.int_]


def replays_of(rows: Sequence[MeasuredRow], without: Mapping[str, Values]) -> list[ReplayedCalibration]:
    """Every table with enough rows on one machine, begun with the constants that were fitted without it.

    Five rows are taken, or half of a table that has fewer than ten.
    """
    found = []
    for table in dict.fromkeys(row.table for row in rows):
        members = _of_one_machine([row for row in rows if row.table == table])
        if len(members) >= FEWEST_ROWS:
            found.append(_Replay(members, without[table]).result(table))
    return found


def _of_one_machine(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    machines = [row.machine for row in rows]
    most = max(machines, key=machines.count)
    found = [row for row in rows if row.machine == most]
    return [found[index] for index in np.linspace(0, len(found) - 1, min(MOST_ROWS, len(found))).astype(int)]


class _Replay:
    """Calibrations on some rows of one table."""

    def __init__(self, rows: Sequence[MeasuredRow], values: Values) -> None:
        self._rows, self._values = rows, values
        self._runs = PricedRuns([row.run for row in rows])
        begun = constants_with(values, self._runs.settings[0])
        self._present = present_values(begun.efficiency, scale=begun.scale)
        self._before = np.abs(np.expm1(self._ratios(self._runs)(self._present)))

    def result(self, table: str) -> ReplayedCalibration:
        everything, num_runs = np.arange(len(self._rows)), min(NUM_RUNS, len(self._rows) // 2)
        told = most_telling(slopes(self._ratios(self._runs), CONSTANTS, self._present), num_runs)
        drawn = [np.random.default_rng(draw).permutation(everything)[:num_runs] for draw in range(NUM_DRAWS)]
        parts = np.array_split(np.random.default_rng(0).permutation(everything), min(NUM_PARTS, len(everything)))
        others = [np.setdiff1d(everything, part) for part in parts]
        return ReplayedCalibration(
            table,
            len(self._rows),
            *self._errors([np.array(told)]),
            *self._errors(drawn),
            *self._errors(others),
        )

    def _errors(self, choices: Sequence[Indices]) -> tuple[float, float]:
        """Mean absolute error on the rest, before and after, in the mean over what was chosen."""
        pairs = []
        for chosen in choices:
            rest = np.setdiff1d(np.arange(len(self._rows)), chosen)
            pairs.append((self._before[rest].mean(), self._after(chosen)[rest].mean()))
        before, after = (float(np.mean(column)) for column in zip(*pairs, strict=True))
        return before, after

    def _after(self, chosen: Indices) -> Floats:
        """The absolute error of every row after a calibration on the chosen ones, (n,)."""
        few = self._ratios(PricedRuns([self._rows[index].run for index in chosen]))
        found = refit(few, choose_constants(few, CONSTANTS, self._present).fitted, self._present)
        return np.abs(np.expm1(self._ratios(self._runs)(found)))

    def _ratios(self, runs: PricedRuns) -> LogRatios:
        def constants_of(setting: Setting, moved: Values) -> Constants:
            present = constants_with(self._values, setting)
            return present._replace(efficiency=present.efficiency.model_copy(update=dict(moved)))

        return lambda moved: runs.log_ratios(lambda setting: constants_of(setting, moved))
