"""Text for other programs: JSON documents under a head that says what they are, and cells of CSV files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from conf.visible import visible

VERSION = 1
"""Raised when a name changes its meaning or goes; names may be added without."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins so is calculated by spreadsheets (OWASP, "CSV Injection")."""


def json_text(name: str, content: Mapping[str, Any]) -> str:
    """The document of that name as text; a number that is not finite becomes null, as JSON knows none."""
    return json.dumps({"document": name, "version": VERSION, **_plain_value(content)}, indent=1, allow_nan=False)


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
