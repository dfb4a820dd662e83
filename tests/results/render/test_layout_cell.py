"""Names of layouts in narrow columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from results.render.table import LayoutCell, break_lines

NAME = "tp2-pp64-dp8-mb1-zb-layers1.2x32.1x31-sp-zero1-pointwise-every2"


@pytest.mark.parametrize("width", [20, 40, 100])
def test_a_name_breaks_only_between_its_parts_and_loses_none(width: int) -> None:
    lines = break_lines(NAME, width)
    assert "".join(lines) == NAME
    assert all(len(line) <= width for line in lines)
    assert all(line.endswith("-") for line in lines[:-1])


def test_a_table_gives_a_name_the_width_that_is_left() -> None:
    table = Table(box=None, padding=0)
    table.add_column("layout")
    table.add_row(LayoutCell(NAME))
    console = Console(file=io.StringIO(), width=40, color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    assert [line.rstrip() for line in console.file.getvalue().splitlines()[1:]] == break_lines(NAME, 40)
