"""Calibrations on five rows of a table at most, replayed: what they do to the error on the rest of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.fitting.constants import constants_with
from benchmarks.left_out import ReplayedCalibration
from benchmarks.published_rows import MeasuredRow
from calibrate.refit_cluster import CONSTANTS, NUM_RUNS, Constants, PricedRuns, most_telling, present_values
from calibrate.robust_fit import Floats, LogRatios, Values, choose_constants, refit, slopes
from train_core.costs.setting import Setting

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
