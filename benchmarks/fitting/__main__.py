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

from benchmarks.csv_rows import write_rows
from benchmarks.fitting.fit import fit, left_out_ratios, left_out_rows, values_without
from benchmarks.fitting.learned import intervals, lessons_of, yaml_text
from benchmarks.fitting.replays import replays_of
from benchmarks.fitting.report import print_calibrations, print_constants, print_tables
from benchmarks.fitting.written_constants import write_constants
from benchmarks.left_out import LEFT_OUT, LeftOutRow
from benchmarks.level_results import LEVEL_RESULTS, LevelResult, level_results
from benchmarks.levels import GENERATION, LEVELS, TABLE
from benchmarks.measured_rows import measured_rows, published_rows
from benchmarks.replayed_calibrations import CALIBRATED, ReplayedCalibration
from sweeps.confidence import VALIDATED
from train_core.whole_files import write_atomically


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
    around = {level: intervals(rows, ratios[level], ratios[GENERATION], level) for level in LEVELS}
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
        write_atomically(VALIDATED, yaml_text(lessons_of(rows, ratios[GENERATION])))
        print(f"Written: {LEFT_OUT.name}, {LEVEL_RESULTS.name}, {CALIBRATED.name}, {VALIDATED.name}")
    if "--write" in options:
        places = write_constants(found.values)
        print(f"Written: {len(places)} constants in {len({place.path for place in places})} files")


if __name__ == "__main__":
    run(sys.argv[1:])
