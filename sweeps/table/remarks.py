"""What a row says in words: remarks in its notes and names that stand for columns which published tables lack."""

from __future__ import annotations

import re

from sweeps.table.cells import Row, text_of

SAID_IN = ("source", "table", "series", "model", "notes")
"""Columns of free text that are read for remarks. What only `assumed` says is somebody's guess, and not read here."""


def said(row: Row, pattern: str, columns: tuple[str, ...] = SAID_IN) -> re.Match[str] | None:
    """The first match in the row's words, in lower case; None where they do not say it."""
    matches = (re.search(pattern, text_of(row, column).lower()) for column in columns)
    return next((match for match in matches if match), None)
