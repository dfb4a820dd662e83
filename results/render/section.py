"""A section of a report: what was found, said in one sentence, and the tables and plots that show it.

Above and below the sections stands the head of the report. Page and Markdown render sections without knowing what they
are about, so that a new one is a module in `results/report/sections` and a line in its table of contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from conf.overrides import Overrides
from results.render.table import Table
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep, points_of

NumbersAre = Literal["measured", "predicted", "published", "measured and predicted"]
"""The kind of number that a section holds. A section of two kinds says of every column and mark which of them it is."""

HOW = frozenset({"search"})
"""Groups that say how points are measured, and not which points there are."""


@dataclass(frozen=True)
class ReportSubject:
    """The subject of a report: one sweep, how each of its points stood when it was read, and the stages after them."""

    sweep: Sweep
    results: Sequence[TrialReading]
    later: Sequence[TrialReading] = ()

    @classmethod
    def of(cls, sweep: Sweep, readings: Sequence[TrialReading]) -> ReportSubject:
        """With all readings of the sweep, told apart."""
        return cls(sweep, points_of(readings), [each for each in readings if each.trial.stage])


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Sentences; what stands between backticks is set as code.

    Attributes:
        is_caution: what must be known before numbers are compared; it stands where the comparison is made.
        is_note: conventions and sources, set smaller, for those who want to know exactly.
    """

    text: str
    is_caution: bool = False
    is_note: bool = False


@dataclass(frozen=True)
class FactList:
    """Names with their values, such as the machine and the day of a measurement."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class KeyFigure:
    """A number that is shown large.

    Attributes:
        value: with its unit.
        note: what it is held against, or how sure it is; may be empty.
    """

    name: str
    value: str
    note: str
    numbers_are: NumbersAre


@dataclass(frozen=True)
class KeyFigures:
    figures: tuple[KeyFigure, ...]


@dataclass(frozen=True)
class NamedTable:
    """A table of the report.

    Attributes:
        name: unique in the report; the page's anchor and the name of its filter.
        folded_as: where few readers will want it, the line that opens it on the page; empty: it is open.
    """

    name: str
    table: Table
    folded_as: str = ""


@dataclass(frozen=True)
class Plot:
    """A picture.

    Attributes:
        name: unique in the report.
        caption: what is shown and how it is read; also what a screen reader says of it.
        spec: Vega-Lite, with its data inside. The page adds the colours of its theme, the width and the fonts. Where a
            colour has a meaning, the spec names it: `var(--measured)`, `var(--predicted)`, `var(--published)`,
            `var(--good)`, `var(--bad)`, `var(--soft)` or `var(--ink)`, which follow light, dark and print.
    """

    name: str
    caption: str
    spec: dict[str, Any]


Block: TypeAlias = Heading | Paragraph | FactList | KeyFigures | NamedTable | Plot


@dataclass(frozen=True)
class Section:
    """A part of the report under a heading of its own.

    Attributes:
        name: the page's anchor.
        numbers_are: the kind of its numbers, shown as a badge beside the title; None where it holds no results.
        finding: what it shows, in one sentence that is understood without the rest; text in backticks is code.
    """

    name: str
    title: str
    numbers_are: NumbersAre | None
    finding: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Head:
    """The subject of a report, in words.

    Attributes:
        title: of the page and of the Markdown.
        kicker: the line above the question.
        note: what restricts the answer; may be empty.
        origin: from what the report was made.
    """

    title: str
    kicker: str
    question: str
    note: str
    origin: str


def head_of(sweep: Sweep) -> Head:
    record = sweep.record
    return Head(
        title=f"Sweep {record.name}",
        kicker=f"Trisweep report of sweep {record.name}",
        question=record.spec.question,
        note=_note(sweep),
        origin=f"Sweep planned with git {record.git_sha}.",
    )


def _note(sweep: Sweep) -> str:
    """A sentence on the points, if they are not those of the sweep's file; else empty."""
    changed = ", ".join(Overrides.parse(sweep.record.overrides).without(HOW).texts)
    if sweep.folder.reports_a_part:
        return f"A part of the sweep: {changed}."
    return f"The sweep as it is filed, but with: {changed}." if changed else ""
