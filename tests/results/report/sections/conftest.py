"""What the tests of all sections need: a subject from a sweep on disk, and pictures that are really drawn."""

from __future__ import annotations

from collections.abc import Callable

import vl_convert

from results.render.section import NamedTable, Paragraph, Plot, ReportSubject, Section
from results.render.table import Table
from sweeps.sweep import Sweep


def subject_of(sweep: Sweep) -> ReportSubject:
    return ReportSubject(sweep, sweep.read())


def shown_of(section: Callable[[ReportSubject], Section | None], sweep: Sweep) -> Section:
    """What the section shows of a sweep of which it has something to say."""
    found = section(subject_of(sweep))
    assert found is not None
    return found


def plots_of(section: Section) -> list[Plot]:
    return [block for block in section.blocks if isinstance(block, Plot)]


def drawn(plot: Plot, width: int = 700) -> str:
    """The picture as SVG, by the library with which the page draws it; a wrong specification is an error."""
    return vl_convert.vegalite_to_svg({"width": width} | plot.spec)


def table_of(section: Section, name: str) -> Table:
    (found,) = (block.table for block in section.blocks if isinstance(block, NamedTable) and block.name == name)
    return found


def rows_of(section: Section, name: str) -> list[dict[str, str]]:
    table = table_of(section, name)
    return [dict(zip(table.columns, (cell.text for cell in row), strict=True)) for row in table.rows]


def text_of(section: Section) -> str:
    """All sentences of a section."""
    return "\n".join(block.text for block in section.blocks if isinstance(block, Paragraph))
