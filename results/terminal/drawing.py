"""A table as rich draws it in a terminal, with names of layouts that break between their parts, and a legend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table as Drawing
from rich.text import Text

from conf.plan.knobs import IN_ORDER_OF_LABELS, Knob, KnobValue, labelled_values
from conf.plan.setup import Setup
from results.table import Cell, Table

NARROW = 100
"""Columns of a terminal below which only a table's first column may take more than it needs."""
ROOM_FOR_NAMES = 24
"""A name breaks between its parts, but into lines that are no shorter while heads can break in its place."""
BREAK_HEADS_AFTER = " .-_/"


FEWEST_CHARACTERS = 11
"""An outcome has so many on one line at least, such as `lacks 137.7`."""


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


def legend(setups: Iterable[Setup]) -> tuple[tuple[str, str], ...]:
    """Each part of the names of these layouts with its meaning, once for those that differ in their number alone."""
    return _explain_parts(labelled_values(each.parallel, each.batch, each.layers_per_stage) for each in setups)


def _explain_parts(names: Iterable[Sequence[tuple[Knob, KnobValue]]]) -> tuple[tuple[str, str], ...]:
    values: dict[str, dict[str, KnobValue]] = {}
    for name in names:
        for knob, value in name:
            seen = values.setdefault(knob.name, {})
            explained = str(value) if knob.value_meanings else ""
            other = seen.get(explained)
            seen[explained] = max(value, other) if isinstance(value, int) and isinstance(other, int) else value
    return tuple(
        (knob.label_of(value), knob.meaning_of(value))
        for knob in IN_ORDER_OF_LABELS
        for value in values.get(knob.name, {}).values()
    )


def legend_text(setups: Iterable[Setup]) -> str:
    """The same on one line, for terminals and plain text; empty where there is nothing to explain."""
    return "; ".join(f"{part} = {meaning}" for part, meaning in legend(setups))


def legend_in_short(setups: Iterable[Setup]) -> str:
    """The same without what stands behind the colon of a meaning, for the caption of a table in a terminal."""
    return _short_text(legend(setups))


def names_in_short(names: Iterable[Sequence[tuple[Knob, KnobValue]]]) -> str:
    """The same for names of plans that are no setups, by the knobs that each mentions and their values."""
    return _short_text(_explain_parts(names))


def _short_text(legend: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{part}: {meaning.partition(':')[0]}" for part, meaning in legend)


def drawing_of(table: Table, width: int) -> Drawing:
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
