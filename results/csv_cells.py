"""Texts as cells of a CSV file that a spreadsheet opens: none is taken for a formula."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins so is calculated by spreadsheets (OWASP, "CSV Injection")."""


def as_cell(value: object) -> object:
    """The value; a text that a spreadsheet would calculate has an apostrophe in front."""
    return f"'{value}" if isinstance(value, str) and len(value) > 1 and value.startswith(FORMULA) else value
