"""benchmarks/calibrated.csv: what a calibration on at most five rows of a table does to the error on the rest of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from train_core.whole_files import write_atomically

CALIBRATED = Path(__file__).with_name("calibrated.csv")


class ReplayedCalibration(NamedTuple):
    """One table, of whose rows at most five were drawn, several times.

    Attributes:
        error_before: mean absolute error on the rest by constants fitted without the table and its clusters.
        error_after: the same after the calibration.
    """

    table: str
    num_rows: int
    error_before: float
    error_after: float


def write_calibrations(found: Iterable[ReplayedCalibration], path: Path = CALIBRATED) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ReplayedCalibration._fields)
    writer.writerows((table, rows, f"{before:.4g}", f"{after:.4g}") for table, rows, before, after in found)
    write_atomically(path, text.getvalue())


def read_calibrations(path: Path = CALIBRATED) -> list[ReplayedCalibration]:
    with path.open(newline="") as file:
        lines = list(csv.reader(file))[1:]
    return [ReplayedCalibration(line[0], int(line[1]), float(line[2]), float(line[3])) for line in lines]
