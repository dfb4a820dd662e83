"""A long name as a cell of a table: where it is too long for its column it breaks between its parts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

NARROW = 100
"""Columns of a terminal below which only a table's first column may take more than it needs."""


FEWEST_CHARACTERS = 9
"""Of an outcome on one line, such as `137.7 GiB`."""


@dataclass(frozen=True, slots=True)
class OutcomeCell:
    """Words that make room for a layout in a narrow terminal by standing on several lines."""

    words: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in broken(self.words, options.max_width, after=" "):
            yield Text(line.rstrip(), style=self.style, no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        narrow = min(len(self.words), max(FEWEST_CHARACTERS, *map(len, self.words.split())))
        return Measurement(narrow, narrow if options.max_width < NARROW else len(self.words))


@dataclass(frozen=True, slots=True)
class LayoutCell:
    """A name such as `tp4-pp8-dp32-mb1-zero1`; a plain text would break within `zero1` or lose its end.

    Attributes:
        after: the characters after which it may break.
    """

    name: str
    after: str = "-"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in broken(self.name, options.max_width, self.after):
            yield Text(line, no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(map(len, _parts(self.name, self.after)))
        return Measurement(min(longest, options.max_width), min(len(self.name), options.max_width))


def broken(name: str, width: int, after: str = "-") -> list[str]:
    """The name in lines of at most that many characters, as far as its parts allow."""
    lines = [""]
    for part in _parts(name, after):
        if lines[-1] and len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return lines


def _parts(name: str, after: str) -> list[str]:
    return re.split(rf"(?<=[{re.escape(after)}])(?<!\de-)", name)  # not within 3.4e-3
