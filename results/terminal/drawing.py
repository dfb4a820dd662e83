"""A table as rich draws it in a terminal: the one place that knows how every table looks there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table as Drawing
from rich.text import Text

from results.table import Cell, Table
from results.terminal.layout_names import LayoutCell, OutcomeCell


def drawing_of(table: Table) -> Drawing:
    """The table with its title above and its caption below; numbers stay on one line, texts wrap."""
    drawing = Drawing(
        title=table.title or None,
        caption=table.caption or None,
        box=box.SIMPLE if table.is_dense else box.SIMPLE_HEAD,
        padding=0 if table.is_dense else (0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    for position, name in enumerate(table.columns):
        is_number = name in table.numeric
        stays_whole = is_number or table.is_dense
        # A number that lost digits without a mark would be read as another number.
        folds = not stays_whole and any(_is_prose(row[position]) for row in table.rows)
        drawing.add_column(
            name,
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


def columns_with_room(
    columns: Mapping[str, Sequence[str]], first_to_go: Sequence[str], room: int
) -> dict[str, Sequence[str]]:
    """The columns that so many characters have room for, each with its cells by its head.

    Args:
        first_to_go: the heads of those without which a narrow terminal can do, in that order.
    """
    kept = dict(columns)
    for name in first_to_go:
        if sum(max(map(len, (head, *cells))) + 1 for head, cells in kept.items()) <= room:
            break
        kept.pop(name, None)
    return kept


def _is_prose(cell: Cell) -> bool:
    return not (cell.gives_way or cell.breaks_after)


def _renderable(cell: Cell) -> RenderableType:
    if cell.gives_way:
        return OutcomeCell(cell.text, cell.style)
    return LayoutCell(cell.text, cell.breaks_after) if cell.breaks_after else Text(cell.text, style=cell.style)
