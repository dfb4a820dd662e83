"""A report as one HTML page that needs nothing but itself: no network, no other file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from results.report.section import Block, Head, Plot, Section
from results.table import LONGEST_CELL, SHOWN_OF_LONG, Table

FEW_COLUMNS = 9
"""A table with no more columns has room for long remarks below its names."""
LONGEST_WORD = 30
"""Columns whose texts are all shorter are not broken into lines."""
TEMPLATES = Path(__file__).with_name("templates")


def page(head: Head, sections: Sequence[Section], legend: Sequence[tuple[str, str]]) -> str:
    """The page as text; the libraries that draw its plots are in it once."""
    return (
        _environment()
        .get_template("report.html")
        .render(
            head=head,
            sections=sections,
            legend=legend,
            library=plot_library() if any(_has_plot(section) for section in sections) else "",
        )
    )


def _has_plot(section: Section) -> bool:
    return any(isinstance(block, Plot) for block in section.blocks)


@cache
def plot_library() -> str:
    """Vega-Lite with all that it needs, 0.9 MB: put together anew it takes a second."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,  # a name misspelt in a template is an error and not an empty cell
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["inline_code"] = _inline_code
    environment.filters["script_json"] = _script_json
    environment.filters["kind"] = _kind
    environment.filters["column_classes"] = _column_classes
    environment.globals |= {"longest_cell": LONGEST_CELL, "shown_of_long": SHOWN_OF_LONG}
    return environment


def _kind(block: Block) -> str:
    return type(block).__name__


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
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(sentence))))


def _script_json(value: object) -> Markup:
    """A value for a script element, which only "<" could end early; JSON allows it to be spelled as an escape."""
    return Markup(json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))
