"""What a fit leaves of each row and table, left_out.csv and calibrated.csv, and how such files are written and read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from train_core.trial.atomic import write_atomically

Record = TypeVar("Record", bound=tuple[Any, ...])


def write_rows(path: Path, kind: type[Record], rows: Iterable[Record], digits: int = 5) -> None:
    """Write the file whole or not at all; floats with that many significant digits."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(get_type_hints(kind))
    writer.writerows([f"{cell:.{digits}g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    write_atomically(path, text.getvalue())


def read_rows(path: Path, kind: type[Record]) -> list[Record]:
    """The rows that `write_rows` wrote; each cell as the type of its field."""
    types = get_type_hints(kind).values()
    with path.open(newline="") as file:
        lines = list(csv.reader(file))[1:]
    return [kind(*(read(cell) for read, cell in zip(types, line, strict=True))) for line in lines]


LEFT_OUT = Path(__file__).with_name("left_out.csv")


class LeftOutRow(NamedTuple):
    """One published row.

    Attributes:
        place: file and line, such as `published.csv:12`.
        predicted_s: seconds of a step by the constants of the tree.
        left_out_s: the same by constants fitted without its table and its machines.
        low_s, high_s: the interval that rows of other tables and machines make around that.
    """

    place: str
    table: str
    series: str
    machine: str
    layout: str
    measured_s: float
    predicted_s: float
    left_out_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        """Relative error by constants fitted without the row's table and machines."""
        return self.left_out_s / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        return self.low_s <= self.measured_s <= self.high_s


CALIBRATED = Path(__file__).with_name("calibrated.csv")


class ReplayedCalibration(NamedTuple):
    """One table, of whose rows at most five were measured and the rest was predicted.

    Errors are mean absolute ones on the rest: before by constants fitted without the table and its clusters, after the
    same once these were calibrated.

    Attributes:
        told_before, told_after: where the five are those that say most (calibrate.refit_cluster).
        drawn_before, drawn_after: where they were drawn, several times.
        others_before, others_after: where all other rows were known, so that no choice of five could do better by much.
    """

    table: str
    num_rows: int
    told_before: float
    told_after: float
    drawn_before: float
    drawn_after: float
    others_before: float
    others_after: float
