"""Text for other programs: JSON documents under a head that says what they are, and cells of CSV files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from conf.visible import visible

VERSION = 4
"""Raised when a name changes its meaning or goes; names may be added without."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins so is calculated by spreadsheets (OWASP, "CSV Injection")."""


def json_lines(name: str, content: Mapping[str, Any]) -> Iterator[str]:
    """The document of that name, a line for each value and for each entry of a list, as a whole it may be large.

    A number that is not finite becomes null, as JSON knows none. A space follows every colon and comma.
    """
    yield "{\n"
    values = {"document": name, "version": VERSION, **content}
    for left, (key, value) in zip(reversed(range(len(values))), values.items(), strict=True):
        end = ",\n" if left else "\n"
        if isinstance(value, list | tuple) and value:
            yield f" {json.dumps(key)}: [\n"
            yield from (f"  {_text_of(entry)},\n" for entry in value[:-1])
            yield f"  {_text_of(value[-1])}\n ]{end}"
        else:
            yield f" {json.dumps(key)}: {_text_of(value)}{end}"
    yield "}\n"


def _text_of(value: Any) -> str:
    return json.dumps(_plain_value(value), allow_nan=False)


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain_value(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(content) for content in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def csv_cell(value: object) -> object:
    """The value; a text that a spreadsheet would calculate has an apostrophe in front, and none holds what acts."""
    if not isinstance(value, str):
        return value
    return visible(f"'{value}" if len(value) > 1 and value.startswith(FORMULA) else value)
