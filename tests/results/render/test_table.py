"""A table as a terminal draws it."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from results.render.table import Table, breakable, number, text
from results.report.sections.trials import section
from results.tables.sweep_tables import RANKED_COLUMNS, ranking_table
from sweeps.sweep import Sweep
from tests.results.conftest import WriteSweep
from tests.results.report.sections.conftest import subject_of, table_of
from tests.results.report.test_report import HOW, PROXY_TRIALS


def drawn(table: Table, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def column_of(table: Table, name: str) -> list[str]:
    return [row[table.columns.index(name)].text for row in table.rows]


def test_a_number_that_has_no_room_is_marked_as_cut_and_text_wraps() -> None:
    rows = ((breakable("tp4-pp8"), number("123456789", 123456789.0), text("as many as there are")),)
    lines = drawn(Table(("layout", "tokens", "why"), rows, frozenset({"tokens"})), 20)
    assert any("…" in line for line in lines)
    assert "123456789" in " ".join(drawn(Table(("layout", "tokens", "why"), rows, frozenset({"tokens"})), 40))


@pytest.mark.parametrize(
    "heads",
    [("joules per token", "seconds of a step", "step s"), ("evaluate.region.tropics", "inference.error_of_all")],
)
def test_long_heads_break_before_names_are_cut(heads: tuple[str, ...]) -> None:
    names = ("tp2-pp16-dp2-mb1-gb8-zero1-selective", "gb4 lr=3.4e-3 weight_decay=0.1 seed=1")
    figures = [number("0.1234", 0.1234)] * len(heads)
    rows = tuple((breakable(name, "- "), text("COMPLETED"), *figures) for name in names)
    table = Table(("trial", "outcome", *heads), rows, frozenset(heads))
    above, below = " ".join(drawn(table, 70)).split("─ ")
    assert all(word in above for head in heads for word in re.split(r"[ .]", head))
    shown = " ".join(below.replace("COMPLETED", "").replace("0.1234", "").split())
    assert shown == "tp2-pp16-dp2-mb1-gb8- zero1-selective gb4 lr=3.4e-3 weight_decay=0.1 seed=1"
    assert all(head in drawn(table, 120)[1] for head in heads)


def test_rows_that_sum_up_the_others_stand_apart() -> None:
    rows = tuple((text(name), number("1", 1.0)) for name in ("a", "b", "in all"))
    lines = drawn(Table(("table", "n"), rows, frozenset({"n"}), title="Score", num_totals=1), 40)
    (last,) = [number_of for number_of, line in enumerate(lines) if "in all" in line]
    assert lines[0].startswith("Score")
    assert lines[last - 1] == ""


def test_the_report_and_a_terminal_rank_the_same_points_with_the_same_figures(write_sweep: WriteSweep) -> None:
    folder = write_sweep(PROXY_TRIALS, HOW).folder
    sweep = Sweep.stored_in(folder)
    whole = section(subject_of(sweep))
    assert whole is not None
    reported, shown = table_of(whole, "trials"), ranking_table(sweep.record, sweep.read())
    both = [(short, long) for short, long in RANKED_COLUMNS.items() if long in reported.columns and short != "x"]
    assert len(both) >= 4
    for short, long in both:
        assert column_of(shown, short) == column_of(reported, long)
