"""The figures of a program that does not train, such as the scores of an evaluation: from a file, or from its lines."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conf.types.trainer_spec import MetricsSpec


class NoMetrics(Exception):
    """The program ended well, and the figures that it was to leave are not there."""


class FoundMetrics:
    """Collects the figures that a stage is to have, from the lines of a program and from its file."""

    def __init__(self, spec: MetricsSpec | None) -> None:
        self._spec = spec
        self._found: dict[str, float] = {}
        self._pattern = re.compile(spec.line) if spec and spec.line is not None else None

    def hear(self, line: str) -> None:
        """Take a line of the program's log; a later one says the last word."""
        match = self._pattern.search(line) if self._pattern else None
        if match:
            self._found |= dict(_numbers(match.groupdict()))

    def in_folder(self, folder: Path) -> dict[str, float]:
        """All of the figures, once the program has ended.

        Raises:
            NoMetrics: one sentence about what is missing.
        """
        if self._spec is None:
            return {}
        found = self._found if self._spec.file is None else _in_file(folder / self._spec.file)
        if not found:
            raise NoMetrics(f"no line of its log has a number where metrics.line = {self._spec.line!r} looks for it")
        return found


def _in_file(path: Path) -> dict[str, float]:
    where = f"metrics.file = {path.name!r}"
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise NoMetrics(f"it left no file of figures in its folder ({where}: {error.strerror})") from None
    except ValueError as error:
        raise NoMetrics(f"its file of figures is no JSON ({where}: {error})") from None
    found = dict(_numbers(content)) if isinstance(content, dict) else {}
    if not found:
        raise NoMetrics(f"its file of figures holds no number under a name ({where})")
    return found


def _numbers(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The finite numbers, each with its name; words and lists beside them are left out."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif (number := _number(value)) is not None:
            yield f"{prefix}{name}", number


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
