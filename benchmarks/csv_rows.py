"""CSV files of the benchmarks' own: one row for each named tuple, whose fields are the columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from train_core.whole_files import write_atomically

Row = TypeVar("Row", bound=tuple[Any, ...])


def write_rows(path: Path, kind: type[Row], rows: Iterable[Row], digits: int = 5) -> None:
    """Write the file whole or not at all; floats with that many significant digits."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(get_type_hints(kind))
    writer.writerows([f"{cell:.{digits}g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    write_atomically(path, text.getvalue())


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """The rows that `write_rows` wrote; each cell as the type of its field."""
    types = get_type_hints(kind).values()
    with path.open(newline="") as file:
        lines = list(csv.reader(file))[1:]
    return [kind(*(read(cell) for read, cell in zip(types, line, strict=True))) for line in lines]
