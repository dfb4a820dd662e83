"""Sums of scripts, worked out without running them."""

from __future__ import annotations

import pytest

from diagnose.readers.sums import sum_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NODES * 8", "32"),
        ("$NODES*8/(2*2)", "8"),
        ("${NODES} + 1 - 3", "2"),
        ("7 / 2", "3"),
        ("7 % 4", "3"),
        ("-NODES", "-4"),
        ("8 \\* 4", "32"),
    ],
)
def test_a_sum_is_worked_out(text: str, value: str) -> None:
    assert sum_of(text, {"NODES": "4"}) == value


@pytest.mark.parametrize(
    "text", ["UNSET * 8", "", "1 / 0", "2 ** 99", "9999999999 * 9999999999", "(" * 90, "8 8", "1 if 2", "1.5 * 2"]
)
def test_what_is_no_sum_of_known_numbers_has_no_value(text: str) -> None:
    assert sum_of(text, {"NODES": "4"}) is None
