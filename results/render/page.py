"""A report as one HTML page that needs nothing but itself: no network, no other file; and as Markdown."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from conf.own_files import at_hand
from conf.visible import markdown_text, visible, visible_in_json
from results.render.section import Block, FactList, Head, Heading, KeyFigures, NamedTable, Paragraph, Plot, Section
from results.render.table import FIRST_ROWS, LONGEST_CELL, SHOWN_OF_LONG, Cell, Table

FEW_COLUMNS = 9
"""A table with no more columns has room for long remarks below its names."""
LONGEST_WORD = 30
"""Columns whose texts are all shorter are not broken into lines."""

BUNDLE = """
import sys, vl_convert
sys.stdout.buffer.write(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").encode())
"""
"""What a process runs that puts together the libraries which draw plots."""


def page(head: Head, sections: Sequence[Section], legend: Sequence[tuple[str, str]]) -> str:
    """The page as text; the libraries that draw its plots are in it once."""
    has_plot = any(isinstance(block, Plot) for section in sections for block in section.blocks)
    return (
        _environment()
        .get_template("report.html")
        .render(head=head, sections=sections, legend=legend, library=plot_library() if has_plot else "")
    )


@cache
def plot_library() -> str:
    """Vega-Lite with all that it needs, 0.9 MB: put together anew it takes a second.

    That is left to a process of its own: the engine keeps 90 MiB of memory as long as its process lives.
    """
    return subprocess.run([sys.executable, "-P", "-c", BUNDLE], check=True, stdout=subprocess.PIPE).stdout.decode()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(at_hand("results/render/templates")),
        autoescape=select_autoescape(["html"]),
        finalize=lambda value: visible(value) if type(value) is str else value,  # what is markup already stays
        undefined=StrictUndefined,  # a name misspelt in a template is an error and not an empty cell
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["inline_code"] = _inline_code
    environment.filters["script_json"] = _script_json
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["column_classes"] = _column_classes
    environment.filters["later_rows"] = _later_rows
    environment.globals |= {"first_rows": FIRST_ROWS, "longest_cell": LONGEST_CELL, "shown_of_long": SHOWN_OF_LONG}
    return environment


def _later_rows(table: Table) -> dict[str, Any]:
    """What the page makes further rows of when they are asked for: a tenth of their size, and nothing to draw yet."""
    rows = table.rows[FIRST_ROWS:]
    return {
        "count": len(rows),
        "longest": LONGEST_CELL,
        "shown": SHOWN_OF_LONG,
        "marked": [position - FIRST_ROWS for position in sorted(table.marked) if position >= FIRST_ROWS],
        "columns": [_later_cells([row[column] for row in rows]) for column in range(len(table.columns))],
    }


def _later_cells(cells: Sequence[Cell]) -> dict[str, Any]:
    """One column: a text of all cells alone, and the values that it sorts by with six digits."""
    texts = [cell.text for cell in cells]
    sorts = [None if cell.sort is None or math.isinf(cell.sort) else float(f"{cell.sort:.6g}") for cell in cells]
    values = [int(sort) if sort is not None and sort.is_integer() else sort for sort in sorts]
    notes = {position: cell.note for position, cell in enumerate(cells) if cell.note}
    return (
        {"texts": texts if len(set(texts)) > 1 else texts[0]}
        | ({} if set(values) == {None} else {"sorts": values})
        | ({"notes": notes} if notes else {})
    )


def _column_classes(table: Table) -> list[Markup]:
    """The class attribute of each column's cells; most have none, because a long table has thousands of cells."""
    longest = (max((len(row[column].text) for row in table.rows), default=0) for column in range(len(table.columns)))
    return [_class_of(table, name, length) for name, length in zip(table.columns, longest, strict=True)]


def _class_of(table: Table, column: str, longest: int) -> Markup:
    if column in table.numeric:
        return Markup(' class="number"')
    if column == table.key:
        noted = " noted" * table.has_notes + " roomy" * (table.has_notes and len(table.columns) <= FEW_COLUMNS)
        return Markup(f' class="key{noted}"')
    return Markup(' class="prose"') if longest > LONGEST_WORD else Markup("")


def _inline_code(sentence: str) -> Markup:
    """A sentence for HTML, escaped, with `...` set as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(visible(sentence)))))


def _script_json(value: object) -> Markup:
    """A value for a script element, which only "<" could end early; JSON allows it to be spelled as an escape."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(visible_in_json(text).replace("<", "\\u003c"))


def markdown(head: Head, sections: Sequence[Section], legend: Sequence[tuple[str, str]]) -> str:
    """The whole report as one text; a plot is its caption, because its data is in a table nearby."""
    parts = [f"# {markdown_text(head.title)}", *map(markdown_text, (head.question, head.note))]
    for section in sections:
        kind = f" ({section.numbers_are})" if section.numbers_are else ""
        parts += [
            f"## {markdown_text(section.title)}{kind}",
            markdown_text(section.finding),
            *(text for block in section.blocks for text in _block(block)),
        ]
        if section is sections[0] and legend:
            meanings = (f"`{part}` {meaning}" for part, meaning in legend)
            parts += [f"Layouts: {markdown_text('; '.join(meanings))}."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Heading(text):
            yield f"### {markdown_text(text)}"
        case Paragraph(text, is_caution):
            yield "**Caution:** " * is_caution + markdown_text(text)
        case FactList(items):
            yield "\n".join(f"- {markdown_text(f'{name}: {value}')}" for name, value in items)
        case KeyFigures(figures):
            yield "\n".join(
                f"- {figure.name}: **{markdown_text(figure.value)}**"
                f" ({markdown_text(', '.join(filter(None, (figure.numbers_are, figure.note))))})"
                for figure in figures
            )
        case NamedTable(_, table, folded_as):
            if folded_as:
                yield f"**{markdown_text(folded_as)}**"
            yield table.beginning.markdown()
            if len(table.rows) > FIRST_ROWS:
                yield f"The first {FIRST_ROWS} of {len(table.rows):,} rows; the HTML page beside has all of them."
