"""How a section of a diagnosis is set in a terminal: a label, the text, and the line of a file that says it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from cli.output.console import console
from diagnose.runs import Fact, LogLine, SaidBy

LABEL, LONGEST_PLACE = 15, 34
OF_COMMAND = "this command"


class AnswerSection:
    """Lines below a heading, printed when all are there."""

    def __init__(self, heading: str) -> None:
        self.heading = heading
        self.grid = Table.grid(padding=(0, 1))
        self.grid.add_column(width=LABEL, style="bold")
        self.grid.add_column(ratio=1)
        self.grid.add_column(max_width=LONGEST_PLACE, style="dim", justify="right", overflow="fold")

    def add(self, label: str, words: str, place: str = "", style: str = "") -> None:
        if words:
            self.grid.add_row(f"  {label}", Text(words, style=style), place)

    def show(self) -> None:
        console.print()
        console.print(Text(self.heading, style="bold underline"))
        console.print(self.grid)


def place_of(at: LogLine | None) -> str:
    """`run.log:12`; the file alone where no line says it, and the command where a word of it does."""
    if at is None:
        return ""
    return f"{at.file}:{at.line}" if at.line else at.file


def places_of(facts: Iterable[Fact]) -> str:
    """Where facts stand, in short: `run.log:12-40`."""
    said = list(facts)
    lines: dict[str, list[int]] = {}
    for fact in said:
        if fact.at is not None and fact.said_by is not SaidBy.OVERRIDE:
            lines.setdefault(fact.at.file, []).extend([fact.at.line] if fact.at.line else [])
    shown = [f"{file}{_span(numbers)}" for file, numbers in lines.items()]
    if any(fact.said_by is SaidBy.OVERRIDE for fact in said):
        shown.append(OF_COMMAND)
    return ", ".join(shown)


def _span(numbers: list[int]) -> str:
    if not numbers:
        return ""
    first, last = min(numbers), max(numbers)
    return f":{first}" if first == last else f":{first}-{last}"
