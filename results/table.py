"""A table, whoever shows it: cells that know how they read and how they sort.

It is set as Markdown here, by `results/report/page.py` in the page, and by `results/terminal/drawing.py` in a terminal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from conf.visible import markdown_text
from results.units import ABSENT

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

LONGEST_CELL = 400
"""A cell with more characters is cut, because every row of a Markdown table is as wide as its widest."""
SHOWN_OF_LONG = 200
FIRST_ROWS = 100
"""So many rows of a longer table are shown at once."""


@dataclass(frozen=True)
class Cell:
    """One field of a row.

    Attributes:
        sort: the value that a click on the column's head sorts by; the text itself when None.
        note: a remark that the page sets below the text, and Markdown into a last column.
        style: its colour in a terminal.
        breaks_after: characters after which a terminal may break the text; empty: at spaces.
        gives_way: in a narrow terminal it stands on several lines, and leaves its room to names.
    """

    text: str
    sort: float | None = None
    note: str = ""
    style: str = ""
    breaks_after: str = ""
    gives_way: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under named columns.

    Attributes:
        numeric: names of the columns that are set to the right.
        marked: positions of rows to stress, such as the best and the baseline.
        choices: names of the columns with few different texts, by which the page offers to filter, such as the outcome.
        title: the line above it in a terminal, where `caption` stands below; in a report sections say both.
        num_totals: so many rows at the end sum up the others, and are set off from them in a terminal.
        is_dense: in a terminal, its columns stand closer than those of others.
        least_name_width: in a terminal, the characters that the first column has at least.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: frozenset[str]
    marked: frozenset[int] = frozenset()
    choices: tuple[str, ...] = ()
    title: str = ""
    caption: str = ""
    num_totals: int = 0
    is_dense: bool = False
    least_name_width: int = 0

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Cell]], marked: Collection[int] = (), words: Collection[str] = ()) -> Table:
        """The table of at least one row; a column whose cells sort by numbers is numeric, but for `words`."""
        numeric = frozenset(name for name, cell in rows[0].items() if cell.sort is not None and name not in words)
        return cls(tuple(rows[0]), tuple(tuple(row.values()) for row in rows), numeric, frozenset(marked))

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

    def only(self, columns: Collection[str]) -> Table:
        positions = [position for position, name in enumerate(self.columns) if name in columns]
        return replace(
            self,
            columns=tuple(self.columns[position] for position in positions),
            rows=tuple(tuple(row[position] for position in positions) for row in self.rows),
            numeric=self.numeric & frozenset(columns),
            choices=tuple(name for name in self.choices if name in columns),
        )

    @property
    def beginning(self) -> Table:
        """The table with its first rows alone."""
        return replace(self, rows=self.rows[:FIRST_ROWS])

    def without_empty_columns(self) -> Table:
        """The table without the columns of numbers in which no row has any."""
        return self.only([name for name in self.columns if name not in self.numeric or self.texts_of(name) != [ABSENT]])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table as a console of rich prints it, which asks for it by this name."""
        from results.terminal.drawing import drawing_of  # rich is not needed to write a report

        yield drawing_of(self, options.max_width)

    def markdown(self) -> str:
        """A pipe table whose columns line up, so that it reads well as plain text."""
        has_notes = self.has_notes  # asked once, because each answer looks at every cell
        heads = [_markdown_cell(name) for name in self.columns] + ["note"] * has_notes
        body = [[_markdown_cell(cell.text) for cell in row] for row in self.rows]
        if has_notes:
            for texts, row in zip(body, self.rows, strict=True):
                texts.append(_markdown_cell(" ".join(cell.note for cell in row if cell.note)))
        # The rule below the heads needs three dashes to be one.
        widths = [max(3, len(head), *(len(row[column]) for row in body)) for column, head in enumerate(heads)]
        right = [name in self.numeric for name in self.columns] + [False] * has_notes
        rule = "|".join(
            f"-{'-' * width}{':' if is_right else '-'}" for width, is_right in zip(widths, right, strict=True)
        )
        lines = [
            _markdown_line(heads, widths, right),
            f"|{rule}|",
            *(_markdown_line(row, widths, right) for row in body),
        ]
        return "\n".join(lines)


def text(value: object) -> Cell:
    return Cell(str(value))


def breakable(name: str, after: str = "-") -> Cell:
    """A name such as `tp4-pp8-dp32`, which a terminal breaks between its parts alone."""
    return Cell(name, breaks_after=after)


def number(shown: str, value: float | None) -> Cell:
    """Absent numbers sort last, below every real one."""
    return Cell(shown, float("-inf") if value is None else float(value))


def _markdown_line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(cells, widths, right, strict=True)
    )
    return f"| {' | '.join(padded)} |"


def _markdown_cell(cell: str) -> str:
    if len(cell) > LONGEST_CELL:
        cell = f"{cell[:SHOWN_OF_LONG]} ... (whole in the CSV)"
    return markdown_text(cell).replace("|", "\\|")
