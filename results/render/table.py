"""A table, whoever shows it: cells that know how they read and how they sort.

It is set as Markdown here, and as rich draws it in a terminal, where names of layouts break between their parts; by
`results/render/page.py` in the page.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table as Drawing
from rich.text import Text

from conf.visible import markdown_text
from results.render.units import ABSENT

LONGEST_CELL = 400
"""A cell with more characters is cut, because every row of a Markdown table is as wide as its widest."""
SHOWN_OF_LONG = 200
FIRST_ROWS = 100
"""So many rows of a longer table are shown at once."""
NARROW = 100
"""Columns of a terminal below which only a table's first column may take more than it needs."""
ROOM_FOR_NAMES = 24
"""A name breaks between its parts, but into lines that are no shorter while heads can break in its place."""
BREAK_HEADS_AFTER = " .-_/"
FEWEST_CHARACTERS = 11
"""An outcome has so many on one line at least, such as `lacks 137.7`."""


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
        yield _drawing_of(self, options.max_width)

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


@dataclass(frozen=True, slots=True)
class LayoutCell:
    """A name such as `tp4-pp8-dp32-mb1-zero1`; a plain text would break within `zero1` or lose its end.

    Attributes:
        after: the characters after which it may break.
        gives_way: they are words that make room for names in a narrow terminal by standing on several lines.
    """

    name: str
    after: str = "-"
    style: str = ""
    gives_way: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in break_lines(self.name, options.max_width, self.after):
            yield Text(line.rstrip(), style=self.style, no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(map(len, _parts(self.name, self.after)))
        if self.gives_way:
            narrow = min(len(self.name), max(FEWEST_CHARACTERS, *map(len, self.name.split())))
            return Measurement(narrow, narrow if options.max_width < NARROW else len(self.name))
        return Measurement(min(longest, options.max_width), min(len(self.name), options.max_width))


def break_lines(name: str, width: int, after: str = "-") -> list[str]:
    """The name in lines of at most that many characters, as far as its parts allow."""
    lines = [""]
    for part in _parts(name, after):
        if lines[-1] and len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return lines


def _parts(name: str, after: str) -> list[str]:
    return re.split(rf"(?<=[{re.escape(after)}])(?<!\de-)", name)  # not within 3.4e-3


def _drawing_of(table: Table, width: int) -> Drawing:
    """The table with its title above and its caption below; numbers stay on one line, texts wrap."""
    drawing = Drawing(
        title=table.title or None,
        caption=table.caption or None,
        box=box.SIMPLE if table.is_dense else box.SIMPLE_HEAD,
        padding=0 if table.is_dense else (0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    for position, (name, head) in enumerate(zip(table.columns, _heads(table, width), strict=True)):
        is_number, cells = name in table.numeric, [row[position] for row in table.rows]
        stays_whole = is_number or table.is_dense
        # A number that lost digits without a mark would be read as another number.
        folds = not stays_whole and any(not (cell.gives_way or cell.breaks_after) for cell in cells)
        drawing.add_column(
            head,
            justify="right" if is_number else "left",
            no_wrap=stays_whole,
            overflow="fold" if folds else "ellipsis",
            min_width=table.least_name_width if position == 0 else None,
        )
    first_total = len(table.rows) - table.num_totals
    for position, row in enumerate(table.rows):
        is_total = position >= first_total
        if position == first_total:
            drawing.add_section()
        drawing.add_row(*map(_renderable, row), style="bold" if is_total else None)
    return drawing


def _heads(table: Table, width: int) -> list[str]:
    """The heads; where names have too little room beside them, the longest break over as many lines as it takes."""
    cells = [_least_width(table, position) for position in range(len(table.columns))]
    heads = [[name] for name in table.columns]
    lines_and_padding = len(cells) + 1 + (0 if table.is_dense else len(cells))
    while sum(map(max, cells, map(_width_of, heads))) + lines_and_padding > width:
        narrower = [break_lines("".join(head), _width_of(head) - 1, BREAK_HEADS_AFTER) for head in heads]
        needed = map(max, cells, map(_width_of, narrower))
        breaking = [place for place, least in enumerate(needed) if least < _width_of(heads[place])]
        if not breaking:
            break
        widest = max(breaking, key=lambda place: _width_of(heads[place]))
        heads[widest] = narrower[widest]
    return ["\n".join(line.rstrip() for line in lines) for lines in heads]


def _width_of(lines: Sequence[str]) -> int:
    return max(len(line.rstrip()) for line in lines)


def _least_width(table: Table, position: int) -> int:
    """The characters below which the cells of a column are cut, or a name in it is hard to read."""
    stays_whole = table.is_dense or table.columns[position] in table.numeric
    widths = [table.least_name_width] if position == 0 else [0]
    for cell in (row[position] for row in table.rows):
        words = max(map(len, cell.text.split()), default=0)
        whole = len(cell.text)
        widths.append(whole if stays_whole else min(whole, ROOM_FOR_NAMES) if cell.breaks_after else words)
    return max(widths)


def columns_with_room(
    columns: Mapping[str, Sequence[str]], first_to_go: Sequence[str], room: int
) -> dict[str, Sequence[str]]:
    """The columns that so many characters have room for, by their heads; `first_to_go` go in their order."""
    kept = dict(columns)
    for name in first_to_go:
        if sum(max(map(len, (head, *cells))) + 1 for head, cells in kept.items()) <= room:
            break
        kept.pop(name, None)
    return kept


def _renderable(cell: Cell) -> RenderableType:
    if cell.gives_way:
        return LayoutCell(cell.text, " ", cell.style, gives_way=True)
    return LayoutCell(cell.text, cell.breaks_after) if cell.breaks_after else Text(cell.text, style=cell.style)
