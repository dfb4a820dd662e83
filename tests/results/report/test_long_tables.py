"""Tables of thousands of rows: the first hundred are drawn, and all others are found, sorted and shown when asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from results.render.page import markdown, page
from results.render.section import Head, NamedTable, Section
from results.render.table import Cell, Table, number, text
from tests.results.report.conftest import Open

HEAD = Head("", "", "", "", "")
ROWS = 2500


def long_table() -> Table:
    """Rows whose rates fall, but for the last, which has the highest; one has a remark, one a text of many letters."""
    rates = [*(1000 - each / 10 for each in range(ROWS - 1)), 4321.0]
    rows = [
        {
            "layout": Cell(f"tp{each}</script>", note="was disturbed" if each == 700 else ""),
            "rate": number(f"{rate:.1f}", rate),
            "outcome": text("failed" if each == 1234 else "completed"),
            "cause": text("x" * 500 if each == 1234 else ""),
        }
        for each, rate in enumerate(rates)
    ]
    rows[1999]["rate"] = number("-", None)
    table = Table.of(rows, marked=(0, 2000))
    return Table(table.columns, table.rows, table.numeric, table.marked, choices=("outcome",))


SECTIONS = [Section("trials", "Trials", "measured", "", (NamedTable("trials", long_table()),))]


def test_a_long_table_is_a_hundred_rows_and_a_compact_rest() -> None:
    whole = page(HEAD, SECTIONS, [])
    assert whole.count("<tr") == 1 + 100
    assert 'tp2400\\u003c/script>"' in whole, "no text can end the script"
    assert len(whole) < 200_000


def test_markdown_has_the_first_rows_and_says_where_the_others_are() -> None:
    lines = markdown(HEAD, SECTIONS, []).splitlines()
    assert sum(line.startswith("| tp") for line in lines) == 100
    assert "The first 100 of 2,500 rows; the HTML page beside has all of them." in lines


@pytest.mark.slow
def test_every_row_is_found_sorted_and_shown_when_asked(visit: Open, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(HEAD, SECTIONS, []))
    seen = visit(tmp_path / "page.html", width=390)
    tools = seen.page.locator(".tools")
    said = tools.locator("output")
    assert (len(seen.column(1)), said.inner_text()) == (100, "2500 rows, the first 100 shown")
    tools.get_by_label("Filter").fill("TP2400")
    assert (seen.column(1), said.inner_text()) == (["tp2400</script>"], "1 of 2500 rows")
    assert tools.get_by_role("button").count() == 0, "nothing is left to be shown"
    tools.get_by_label("Filter").fill("disturbed")
    assert seen.column(1) == ["tp700</script>"]
    tools.get_by_label("Filter").fill("")
    tools.get_by_label("outcome").select_option("failed")
    assert seen.column(1) == ["tp1234</script>"]
    assert seen.page.locator("details.long summary").inner_text() == "x" * 200 + " …"
    tools.get_by_label("outcome").select_option("")
    seen.click_head("rate")
    assert seen.column(2)[:3] == ["4321.0", "1000.0", "999.9"]
    tools.get_by_role("button", name="Show all").click()
    rates = seen.column(2)
    assert (len(rates), rates[-1], said.inner_text()) == (ROWS, "-", "2500 rows")
    assert seen.page.locator("tr.marked").evaluate_all("rows => rows.map(row => row.cells[1].textContent)") == [
        "1000.0",
        "800.0",
    ]
    seen.click_head("rate")
    assert seen.column(2)[:2] == ["750.2", "750.3"]
    seen.click_head("layout")
    assert [re.sub("</script>", "", name) for name in seen.column(1)[:3]] == ["tp0", "tp1", "tp2"]
    assert seen.troubles == []
