"""A layout's name as a cell of a table: where it is too long for its column it breaks between its parts."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text


@dataclass(frozen=True, slots=True)
class LayoutCell:
    """A name such as `tp4-pp8-dp32-mb1-zero1`; a plain text would break within `zero1` or lose its end."""

    name: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in broken(self.name, options.max_width):
            yield Text(line, no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(len(part) + 1 for part in self.name.split("-"))
        return Measurement(min(longest, options.max_width), min(len(self.name), options.max_width))


def broken(name: str, width: int) -> list[str]:
    """The name in lines of at most that many characters, each but the last ending with a hyphen."""
    lines = [""]
    parts = name.split("-")
    for part in [*(f"{part}-" for part in parts[:-1]), parts[-1]]:
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return lines
