"""A table of a report: cells that know how they read and how they sort, and their Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from results.units import ABSENT

LONGEST_CELL = 400
"""A cell with more characters is cut, because every row of a Markdown table is as wide as its widest."""
SHOWN_OF_LONG = 200


@dataclass(frozen=True)
class Cell:
    """One field of a row.

    Attributes:
        sort: the value that a click on the column's head sorts by; the text itself when None.
        note: a remark that the page sets below the text, and Markdown into a last column.
    """

    text: str
    sort: float | None = None
    note: str = ""


@dataclass(frozen=True)
class ReportTable:
    """Rows under named columns.

    Attributes:
        numeric: names of the columns that are set to the right.
        marked: positions of rows to stress, such as the best and the baseline.
        choices: names of the columns with few different texts, by which the page offers to filter, such as the outcome.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: frozenset[str]
    marked: frozenset[int] = frozenset()
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The column that says what a row is about: the first that holds no numbers."""
        return next((name for name in self.columns if name not in self.numeric), self.columns[0])

    def texts_of(self, column: str) -> list[str]:
        """The different texts of a column, in the order of the rows."""
        position = self.columns.index(column)
        return list(dict.fromkeys(row[position].text for row in self.rows))

    @property
    def has_notes(self) -> bool:
        return any(cell.note for row in self.rows for cell in row)

    def only(self, columns: Collection[str]) -> ReportTable:
        """The table with these of its columns."""
        kept = [position for position, name in enumerate(self.columns) if name in columns]
        return replace(
            self,
            columns=tuple(self.columns[position] for position in kept),
            rows=tuple(tuple(row[position] for position in kept) for row in self.rows),
            numeric=self.numeric & frozenset(columns),
            choices=tuple(name for name in self.choices if name in columns),
        )

    def without_empty_columns(self) -> ReportTable:
        """The table without the columns of numbers in which no row has any."""
        return self.only([name for name in self.columns if name not in self.numeric or self.texts_of(name) != [ABSENT]])

    def markdown(self) -> str:
        """A pipe table whose columns line up, so that it reads well as plain text."""
        has_notes = self.has_notes  # asked once, because each answer looks at every cell
        heads = [_safe(name) for name in self.columns] + ["note"] * has_notes
        body = [_safe_row(row, has_notes) for row in self.rows]
        # The rule below the heads needs three dashes to be one.
        widths = [max(3, len(head), *(len(row[column]) for row in body)) for column, head in enumerate(heads)]
        right = [name in self.numeric for name in self.columns] + [False] * has_notes
        rule = "|".join(
            f"-{'-' * width}{':' if is_right else '-'}" for width, is_right in zip(widths, right, strict=True)
        )
        lines = [_line(heads, widths, right), f"|{rule}|", *(_line(row, widths, right) for row in body)]
        return "\n".join(lines)


def text(value: object) -> Cell:
    return Cell(str(value))


def number(shown: str, value: float | None) -> Cell:
    """Absent numbers sort last, below every real one."""
    return Cell(shown, float("-inf") if value is None else float(value))


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(cells, widths, right, strict=True)
    )
    return f"| {' | '.join(padded)} |"


def _safe_row(row: Sequence[Cell], has_notes: bool) -> list[str]:
    """The texts of a row; the notes of all its cells come last."""
    return [_safe(cell.text) for cell in row] + [_safe(" ".join(cell.note for cell in row if cell.note))] * has_notes


def _safe(cell: str) -> str:
    """The cell on one line, without anything that Markdown would take for a column or a tag."""
    if len(cell) > LONGEST_CELL:
        cell = f"{cell[:SHOWN_OF_LONG]} ... (whole in the CSV)"
    return " ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;")
