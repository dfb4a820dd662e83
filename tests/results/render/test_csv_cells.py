"""Cells that a spreadsheet would calculate."""

from __future__ import annotations

import pytest

from results.render.json_and_csv import csv_cell


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ('=HYPERLINK("http://x")', '\'=HYPERLINK("http://x")'),
        ("+1+1", "'+1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-2+3", "'-2+3"),
        ("-", "-"),
        ("tp1-pp2", "tp1-pp2"),
        (-2.5, -2.5),
        (None, None),
    ],
)
def test_a_text_is_never_a_formula_and_a_number_stays_one(value: object, cell: object) -> None:
    assert csv_cell(value) == cell
