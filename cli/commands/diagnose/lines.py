"""How a section of a diagnosis is set in a terminal: a label, the text, and the line of a file that says it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table
from rich.text import Text

from cli.output.console import console
from diagnose.runs import Fact, LogLine, SaidBy

if TYPE_CHECKING:
    from results.render.section import NumbersAre

LABEL, LONGEST_PLACE = 15, 34
OF_COMMAND = "this command"


class AnswerLine(NamedTuple):
    label: str
    words: str
    place: str
    style: str


class AnswerSection:
    """Lines below a heading, and a note below them; lines without words are left out."""

    def __init__(self, heading: str, numbers_are: NumbersAre | None = None) -> None:
        self.heading, self.numbers_are, self.note = heading, numbers_are, ""
        self.lines: list[AnswerLine] = []

    def add(self, label: str, words: str, place: str = "", style: str = "") -> None:
        if words:
            self.lines.append(AnswerLine(label, words, place, style))

    def show(self) -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=LABEL, style="bold")
        grid.add_column(ratio=1)
        grid.add_column(max_width=LONGEST_PLACE, style="dim", justify="right", overflow="fold")
        for label, words, place, style in self.lines:
            grid.add_row(f"  {label}", Text(words, style=style), place)
        console.print()
        console.print(Text(self.heading, style="bold underline"))
        console.print(grid)
        if self.note:
            console.print(Text(self.note, style="dim"))


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
