"""Cells of a table of configurations: text as people and spreadsheets write it, read as counts, flags and choices.

Every function takes a row and a column, and raises a `ConfigError` whose key is the column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from conf.errors import ConfigError

Row = Mapping[str, str]
Choice = TypeVar("Choice")

LARGEST_COUNT = 10**9  # far above any real cell, so that a slip is refused before it becomes nonsense arithmetic


def spellings(words: Mapping[Choice, str]) -> dict[str, Choice]:
    """Every word with what it means, where each meaning has its words."""
    return {word: meaning for meaning, said in words.items() for word in said.split()}


FLAGS = spellings({True: "yes true 1", False: "no false 0"}) | spellings({True: "y on", False: "n off"})
EMPTY = ("nan", "n/a", "<na>", "null", "-", "--")
"""What programs and people write into a cell that they mean to be empty. `none` is not among them: it is a value."""
GROUPED = re.compile(r"\d{1,3}(,\d{3})+")


def text_of(row: Row, column: str) -> str:
    """The cell without surrounding blanks; empty where the row has no such cell."""
    text = (row.get(column) or "").strip()
    return "" if text.lower() in EMPTY else text


def match_in(row: Row, pattern: str, column: str) -> re.Match[str] | None:
    """The first match in the cell, in lower case; None where nothing matches."""
    return re.search(pattern, text_of(row, column).lower())


def integer_of(row: Row, column: str, default: int | None = None, most: int = LARGEST_COUNT) -> int:
    """A whole number above zero. It may be written `96.0`, as spreadsheets and pandas do once a column has a gap."""
    cell = text_of(row, column)
    if not cell and default is not None:
        return default
    value = _whole_number(row, column)
    if not 1 <= value <= most:
        raise ConfigError(column, cell, "is out of range", f"Give a count from 1 to {most:,}.")
    return value


def index_of(row: Row, column: str) -> int | None:
    """A whole number of zero or more; None where the cell is empty."""
    cell = text_of(row, column)
    if not cell:
        return None
    value = _whole_number(row, column)
    if value < 0:
        raise ConfigError(column, cell, "is below zero", "Count from 0.")
    return value


def number_of(row: Row, column: str) -> float | None:
    """A finite number above zero; None where the cell is empty."""
    cell = text_of(row, column)
    if not cell:
        return None
    value = _number(row, column)
    if value <= 0:
        raise ConfigError(column, cell, "is not above zero", "Correct the cell, or leave it empty.")
    return value


def flag_of(row: Row, column: str, default: bool) -> bool:
    return choice_of(row, column, FLAGS, default)


def choice_of(row: Row, column: str, known: Mapping[str, Choice], default: Choice | None) -> Choice:
    """The value in `known` of the cell's leading word, which a remark may follow: `3 (FSDP2)`, `selective (per op)`."""
    cell = text_of(row, column)
    if not cell and default is not None:
        return default
    # A ZeRO stage or a flag can also come from a spreadsheet as `3.0`.
    word = re.split(r"[\s(,;:+]", cell.lower(), maxsplit=1)[0].removesuffix(".0")
    if word not in known:
        raise ConfigError(column, cell, "is not known here", f"Known: {', '.join(known)}.")
    return known[word]


def _whole_number(row: Row, column: str) -> int:
    value = _number(row, column)
    if not value.is_integer():
        raise ConfigError(column, text_of(row, column), "is not a whole number", "Write a count, such as 96.")
    return int(value)


def _number(row: Row, column: str) -> float:
    cell = text_of(row, column)
    if not cell:
        raise ConfigError(column, cell, "is empty, and has no usual value", "Fill in the number.")
    try:
        value = float(cell.replace(",", "") if GROUPED.fullmatch(cell) else cell)
    except ValueError:
        raise ConfigError(column, cell, "is not a number", "Write digits alone, such as 96 or 96.0.") from None
    if not abs(value) <= LARGEST_COUNT:  # written this way round, it also refuses NaN, which compares as false
        raise ConfigError(column, cell, f"is not a number up to {LARGEST_COUNT:,}", "Correct the cell.")
    return value
