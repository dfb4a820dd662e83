"""Calibrations on five rows of a table at most, replayed: what they do to the error on the rest of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.fitting.constants import constants_with
from benchmarks.measured_rows import MeasuredRow
from benchmarks.replayed_calibrations import ReplayedCalibration
from calibrate.measured_runs import Constants, PricedRuns
from calibrate.refit_cluster import CONSTANTS, present_values
from calibrate.robust_fit import Floats, Values, choose, refit
from train_core.costs.setting import Setting

MOST_RUNS = 5
NUM_DRAWS = 3
FEWEST_ROWS = 4


def replayed(rows: Sequence[MeasuredRow], without: Mapping[str, Values]) -> list[ReplayedCalibration]:
    """Every table with enough rows on one machine, begun with the constants that were fitted without it.

    Five rows are taken, or half of a table that has fewer than ten.
    """
    found = []
    for table in dict.fromkeys(row.table for row in rows):
        members = _of_one_machine([row for row in rows if row.table == table])
        if len(members) >= FEWEST_ROWS:
            found.append(_replay(table, members, without[table]))
    return found


def _of_one_machine(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    machines = [row.machine for row in rows]
    most = max(machines, key=machines.count)
    return [row for row in rows if row.machine == most]


def _replay(table: str, rows: Sequence[MeasuredRow], values: Values) -> ReplayedCalibration:
    runs = PricedRuns([row.run for row in rows])
    before = np.abs(np.expm1(runs.log_ratios(lambda setting: constants_with(values, setting))))
    num_runs, errors = min(MOST_RUNS, len(rows) // 2), []
    for draw in range(NUM_DRAWS):
        chosen = np.random.default_rng(draw).permutation(len(rows))[:num_runs]
        rest = np.setdiff1d(np.arange(len(rows)), chosen)
        after = _calibrated_errors(rows, values, chosen.tolist())
        errors.append((before[rest].mean(), after[rest].mean()))
    old, new = (float(np.mean(column)) for column in zip(*errors, strict=True))
    return ReplayedCalibration(table, len(rows), old, new)


def _calibrated_errors(rows: Sequence[MeasuredRow], values: Values, chosen: Sequence[int]) -> Floats:
    """The absolute error of every row after a calibration on the chosen ones, (n,)."""
    runs, few = PricedRuns([row.run for row in rows]), PricedRuns([rows[index].run for index in chosen])

    def constants_of(setting: Setting, moved: Values) -> Constants:
        present = constants_with(values, setting)
        return present._replace(efficiency=present.efficiency.model_copy(update=dict(moved)))

    def ratios(moved: Values) -> Floats:
        return few.log_ratios(lambda setting: constants_of(setting, moved))

    begun = constants_with(values, few.settings[0])
    present = present_values(begun.efficiency, scale=begun.scale)
    found = refit(ratios, choose(ratios, CONSTANTS, present).fitted, present)
    errors: Floats = np.abs(np.expm1(runs.log_ratios(lambda setting: constants_of(setting, found))))
    return errors
