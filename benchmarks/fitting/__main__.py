"""Fit every constant to all published rows, and say what that does to each table.

python -m benchmarks.fitting                print constants before and after, and each table's errors
python -m benchmarks.fitting --residuals    also write what is left out into benchmarks/*.csv and sweeps/validated.yaml
python -m benchmarks.fitting --write        also write the constants, each where it is declared
python -m benchmarks.fitting FILE ...       take the rows of these tables instead
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.fitting.constants import fitted_constants, write_constants
from benchmarks.fitting.fit import fit, left_out_ratios, left_out_rows, replays_of, values_without
from benchmarks.fitting.learned import intervals, lessons_of, yaml_text
from benchmarks.left_out import CALIBRATED, LEFT_OUT, LeftOutRow, ReplayedCalibration, write_rows
from benchmarks.levels import GENERATION, LEVEL_RESULTS, LEVELS, TABLE, LevelResult, level_results
from benchmarks.published_rows import MeasuredRow, measured_rows, published_rows
from benchmarks.table_results import table_results
from benchmarks.target import empty_table, print_table
from calibrate.robust_fit import Values
from conf.own_files import at_hand
from train_core.trial.atomic import write_atomically


def run(arguments: Sequence[str]) -> None:
    options = [each for each in arguments if each.startswith("--")]
    if unknown := set(options) - {"--residuals", "--write"}:
        sys.exit(f"{', '.join(unknown)}: not known. Known: --residuals, --write.")
    files = [Path(each) for each in arguments if not each.startswith("--")]
    if missing := [str(path) for path in files if not path.is_file()]:
        sys.exit(f"{', '.join(missing)}: no such table")
    rows = measured_rows(published_rows(files) if files else published_rows())
    found = fit(rows)
    print_constants(found.values)
    without = values_without(found)
    ratios = {level: left_out_ratios(found, values_without(found, level), level) for level in LEVELS}
    around = {level: intervals(rows, ratios[level]) for level in LEVELS}
    fitted = found.priced_runs.measured * np.exp(found.log_ratios())
    predicted = fitted if "--write" in options else found.priced_runs.step_seconds()
    left_out = left_out_rows(found, predicted, ratios[TABLE], around[TABLE])
    print_tables(rows, left_out, fitted)
    calibrations = replays_of(rows, without)
    print_calibrations(calibrations)
    if options:
        write_rows(LEFT_OUT, LeftOutRow, left_out)
        write_rows(LEVEL_RESULTS, LevelResult, level_results(rows, ratios, around))
        write_rows(CALIBRATED, ReplayedCalibration, calibrations, digits=4)
        write_atomically(at_hand("sweeps/validated.yaml"), yaml_text(lessons_of(rows, ratios[GENERATION])))
        print(f"Written: {LEFT_OUT.name}, {LEVEL_RESULTS.name}, {CALIBRATED.name}, validated.yaml")
    if "--write" in options:
        places = write_constants(found.values)
        print(f"Written: {len(places)} constants in {len({place.path for place in places})} files")


def print_constants(values: Values) -> None:
    """Each constant: what was known of it, what the rows say, and how far that is in spreads."""
    table = _table("constant", "prior", "spread", "fitted", "moved", "why the prior")
    for each in fitted_constants():
        constant = each.constant
        moved = constant.coordinate(values[each.name]) - constant.coordinate(each.prior)
        at_bound = values[each.name] <= each.lowest or values[each.name] >= each.highest
        fitted = f"{values[each.name]:.3g}" + (" (bound)" if at_bound else "")
        table.add_row(each.name, f"{each.prior:.3g}", f"{each.spread:.2g}", fitted, f"{moved:+.1f}", each.reason)
    print_table(table)


def print_tables(rows: Sequence[MeasuredRow], left_out: Sequence[LeftOutRow], fitted: NDArray[np.float64]) -> None:
    """Each table's mean error: as the code is now, fitted, and left out; beside it that of a constant rate.

    Args:
        fitted: seconds of a step of every row by the fitted constants, (n,).
    """
    table = _table("table", "rows", "now %", "fitted %", "left out %", "constant %", "inside %")
    shares = []
    misses = np.abs(fitted / [row.seconds for row in rows] - 1)
    for of in table_results(rows, left_out):
        of_table = [miss for miss, row in zip(misses, rows, strict=True) if row.table == of.name]
        shares.append([of.error, float(np.mean(of_table)), of.left_out_error, of.constant_error, of.coverage])
        table.add_row(of.name, str(len(of.rows)), *_percents(shares[-1]))
    table.add_row(
        "mean over tables", str(len(rows)), *_percents([float(np.mean(column)) for column in zip(*shares, strict=True)])
    )
    print_table(table)


def print_calibrations(found: Sequence[ReplayedCalibration]) -> None:
    """Print the error on the rest of each table before and after five of its runs."""
    table = _table("calibrated on five rows", "rows", "chosen: before %", "after %", "random: before %", "after %")
    for each in found:
        errors = (each.told_before, each.told_after, each.drawn_before, each.drawn_after)
        table.add_row(each.table, str(each.num_rows), *_percents(errors))
    print_table(table)


def _percents(shares: Sequence[float]) -> list[str]:
    return [f"{100 * share:.1f}" for share in shares]


def _table(first: str, *others: str) -> Table:
    table = empty_table()
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name.startswith("why") else "right")
    return table


if __name__ == "__main__":
    run(sys.argv[1:])
