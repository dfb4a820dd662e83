"""Tables of configurations on disk: read as CSV, checked for their columns, written again with what was predicted.

A row that can be priced has a prediction, any other the reason why not. A column that is spelled in another way would,
without a word, mean the default in every row.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.errors import ConfigError, UsageError
from conf.nearest import listed
from conf.units import GIBIBYTE, TERA, count_of
from costs import Estimate, StageMemory, estimates
from sweeps.confidence import Interval, has_own_runs, interval_of
from sweeps.practice import practice_of, said_before
from sweeps.table.cells import Row
from sweeps.table.columns import (
    DEVICE_COLUMNS,
    MEASURED_COLUMNS,
    NAMED_OTHERWISE,
    OPTIONAL_COLUMNS,
    REQUIRED_COLUMNS,
    UNREAD_COLUMNS,
)
from sweeps.table.configuration import Configuration, configuration_of
from train_core.trial.atomic import write_atomically

FIRST_LINE = 2
"""Lines are counted as an editor does: the header is the first one."""

PREDICTED_COLUMNS = (
    *("pred_iter_time_s", "pred_low_s", "pred_high_s", "pred_model_tflops_per_gpu", "pred_hardware_tflops_per_gpu"),
    *("pred_mfu_pct", "pred_hfu_pct", "pred_memory_gib", "pred_allocated_gib", "pred_fits", "pred_outside", "reason"),
)

OWN_WORDS = {
    "framework": "implementation",
    "step_s": "iter_time_s",
    "step_seconds": "iter_time_s",
    "step_time_s": "iter_time_s",
    "trainer": "implementation",
}
"""What other pages of this package, and other people, call what a column of published tables says."""
READ_BESIDE = ("arxiv", "confirmed", "model", "series", "source", "table")
"""Columns that name a row; `arxiv` tells the year as well."""
MAY_BE_MEANT = (*OPTIONAL_COLUMNS, *MEASURED_COLUMNS)
READ = {
    *REQUIRED_COLUMNS,
    *DEVICE_COLUMNS,
    *MAY_BE_MEANT,
    *READ_BESIDE,
    *UNREAD_COLUMNS,
    *PREDICTED_COLUMNS,
}
FREE_TEXT = ("notes", "assumed")
MOST_NAMED = 6
CUTOFF = 0.7


@dataclass(frozen=True)
class Record:
    """One row of a table, with a cell for every column, the number of cells beyond, and its first line in the file."""

    columns: tuple[str, ...]
    cells: tuple[str, ...]
    num_surplus: int = 0
    line: int = FIRST_LINE

    @property
    def row(self) -> Row:
        return dict(zip(self.columns, self.cells, strict=True))

    def require_whole(self) -> None:
        """Refuse a row with more cells than columns: an unquoted comma has moved its cells, and none can be trusted.

        Raises ConfigError where it has such cells.
        """
        if self.num_surplus:
            problem = f"has {count_of(self.num_surplus, 'cell')} more than the header has columns"
            raise ConfigError("row", ",".join(self.cells[:3]) + ",...", problem, "Quote cells that hold commas.")


@dataclass(frozen=True)
class ConfigurationTable:
    """A table of configurations as it was read, without what an earlier prediction added."""

    columns: tuple[str, ...]
    records: tuple[Record, ...]


def read_table(path: Path) -> ConfigurationTable:
    """The rows of a CSV file with a header; blank lines are left out.

    Raises UsageError where there is no such file, it is no CSV, or columns are missing (all of them are named).
    """
    try:
        lines = list(_lines(_text(path)))
    except csv.Error as error:
        raise UsageError(f"{path} is not CSV: {error}", "Save it as comma-separated values in UTF-8.") from None
    return _table(str(path), lines)


def table_of(rows: Iterable[Mapping[str, object]]) -> ConfigurationTable:
    """The same of rows in memory, whose lines are counted as those of a file.

    Raises UsageError where columns are missing.
    """
    rows = list(rows)
    header = list(dict.fromkeys(str(name) for row in rows for name in row))
    cells = ([_cell(row.get(name)) for name in header] for row in rows)
    return _table("The table", [(1, header), *enumerate(cells, start=FIRST_LINE)])


def _cell(value: object) -> str:
    """A value as a file would hold it; what is missing in a frame of pandas is an empty cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    is_missing = value is None or value != value  # NaN alone differs from itself
    # A column of whole numbers with a gap holds floats in a frame.
    return "" if is_missing else f"{value:.17g}" if isinstance(value, float) else str(value)


def _table(name: str, lines: Sequence[tuple[int, Sequence[str]]]) -> ConfigurationTable:
    header = [name.strip() for name in lines[0][1]] if lines else []
    _require_columns(name, header)
    # A table that was written by an earlier prediction can be read again: its old predictions are dropped.
    kept = [index for index, name in enumerate(header) if name not in PREDICTED_COLUMNS]
    columns = tuple(header[index] for index in kept)
    return ConfigurationTable(columns, tuple(_record(columns, kept, len(header), *line) for line in lines[1:]))


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write the table with PREDICTED_COLUMNS after its own; what was there stays until all of it is written.

    Raises UsageError where `path` cannot be such a file; what was there stays.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a file", "Name another one with --out.")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, *PREDICTED_COLUMNS])
    writer.writerows(rows)
    try:
        write_atomically(path, text.getvalue())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", "Name another file with --out.") from None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")  # Excel writes a byte-order mark, which would stick to a column
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8", "Save it as comma-separated values in UTF-8.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Name another CSV file.") from None


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of every row but blank ones, and the line on which it begins: a quoted cell may hold line ends."""
    # `newline=""` leaves line ends to the CSV reader, so that those inside quoted cells survive.
    reader, last = csv.reader(io.StringIO(text, newline=""), strict=True), 0
    for cells in reader:
        if any(cells):
            yield last + 1, cells
        last = reader.line_num


def _require_columns(path: str, header: Sequence[str]) -> None:
    missing = [column for column in REQUIRED_COLUMNS if column not in header]
    missing += [] if any(column in header for column in DEVICE_COLUMNS) else [" or ".join(DEVICE_COLUMNS)]
    if missing:
        found = ", ".join(filter(None, header))[:300] or "none"
        problem = f"{path} lacks the columns {', '.join(missing)} (found: {found})"
        raise UsageError(problem, "Separate columns by commas; docs/estimate.md lists their names.")
    twice = sorted({name for name in header if name and list(header).count(name) > 1})
    if twice:
        raise UsageError(f"{path} has more than one column {', '.join(twice)}", "Keep one of each.")


def _record(columns: tuple[str, ...], kept: Sequence[int], num_columns: int, line: int, found: Sequence[str]) -> Record:
    """The record of one row. Cells that the row leaves out at its end are empty, as spreadsheets mean them."""
    cells = tuple(found[index] if index < len(found) else "" for index in kept)
    return Record(columns, cells, num_surplus=sum(bool(cell.strip()) for cell in found[num_columns:]), line=line)


def unread_sentence(columns: Sequence[str]) -> str | None:
    """A sentence that names the columns that nothing reads; None without any.

    Those that may mean another come first, then free text, in which somebody may have put what changes a price.
    """
    meant = {name: _meant(name, columns) for name in columns if name and name not in READ}
    named = [f"{name} (did you mean {other}?)" for name, other in meant.items() if other]
    named += sorted((name for name, other in meant.items() if not other), key=lambda name: name not in FREE_TEXT)
    return f"Columns that were not read: {listed(named, MOST_NAMED)}." if named else None


def _meant(name: str, columns: Sequence[str]) -> str | None:
    """The column, of those that the table lacks, that is meant by another word for it or by a misspelt one."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if plain in READ:
        return plain if plain not in columns else None
    other = OWN_WORDS.get(plain) or NAMED_OTHERWISE.get(plain)
    if other is not None:
        return other if other not in columns else None
    lacking = [each for each in MAY_BE_MEANT if each not in columns]
    return next(iter(difflib.get_close_matches(plain, lacking, n=1, cutoff=CUTOFF)), None)


@dataclass(frozen=True)
class RowPrediction:
    """A row that was priced."""

    configuration: Configuration
    estimate: Estimate

    @property
    def memory_bytes(self) -> int:
        """Bytes of the stage that the row asks for, or of the worst stage if it asks for none."""
        return self._stage.total_bytes

    @property
    def allocated_bytes(self) -> int:
        """The same bytes without what the framework reserves: what an allocator reports as its maximum."""
        return self._stage.allocated_bytes

    @property
    def _stage(self) -> StageMemory:
        stage = self.configuration.stage
        return self.estimate.stages[self.estimate.worst_stage if stage is None else stage]

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.estimate.memory_capacity_bytes

    @property
    def interval(self) -> Interval:
        """The interval in which four measurements of five are expected."""
        configuration = self.configuration
        trainer = configuration.implementation.name
        return interval_of(configuration.setup, trainer, self.estimate, configuration.practice)

    @property
    def in_words(self) -> str:
        """What most runs of its practice take where layers are of the usual size, or what runs of one's own say."""
        configuration = self.configuration
        setup, trainer = configuration.setup, configuration.implementation.name
        if has_own_runs(setup, trainer):
            return self.interval.in_words
        return said_before(configuration.practice or practice_of(setup, trainer))

    def cells(self) -> tuple[str, ...]:
        priced, models_memory = self.estimate, self.configuration.models_memory
        return (
            f"{priced.step_seconds:.6g}",
            f"{self.interval.low_seconds:.4g}",
            f"{self.interval.high_seconds:.4g}",
            f"{priced.model_flops_per_second_per_device / TERA:.6g}",
            f"{priced.hardware_flops_per_second_per_device / TERA:.6g}",
            f"{100 * priced.model_flops_utilization:.5g}",
            f"{100 * priced.hardware_flops_utilization:.5g}",
            f"{self.memory_bytes / GIBIBYTE:.5g}" if models_memory else "",
            f"{self.allocated_bytes / GIBIBYTE:.5g}" if models_memory else "",
            ("yes" if self.fits else "no") if models_memory else "",
            "; ".join(self.interval.outside),
            "",
        )


@dataclass(frozen=True)
class PricedRow:
    """One row of the table with its `prediction`, or with None and the reason why it has none."""

    record: Record
    prediction: RowPrediction | None
    reason: str

    def cells(self) -> tuple[str, ...]:
        """The row's own cells, then values of PREDICTED_COLUMNS."""
        unpriced = ("",) * (len(PREDICTED_COLUMNS) - 1) + (self.reason,)
        return self.record.cells + (self.prediction.cells() if self.prediction else unpriced)


def price(records: Iterable[Record], implementation: str | None = None) -> list[PricedRow]:
    """Price every row, in order.

    Args:
        implementation: a name of IMPLEMENTATIONS for the rows that name none; None takes the usual one of each row.
    """
    read = [(record, *_read_row(record, implementation)) for record in records]
    priced = iter(estimates([(known.setup, known.implementation) for _, known, _ in read if known is not None]))
    return [
        PricedRow(record, None if known is None else RowPrediction(known, next(priced)), reason)
        for record, known, reason in read
    ]


def _read_row(record: Record, implementation: str | None) -> tuple[Configuration | None, str]:
    """The configuration of a row that can be priced, or None and the reason why it cannot."""
    try:
        record.require_whole()
        configuration = configuration_of(record.row, implementation)
    except ConfigError as error:  # one bad row must not cost the others their prediction
        return None, " ".join(str(error).splitlines())  # a table has a line for every row
    return configuration, ""
