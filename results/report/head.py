"""What stands above and below the sections of a report."""

from __future__ import annotations

from dataclasses import dataclass

from conf.overrides import Overrides
from sweeps.sweep import Sweep

HOW = frozenset({"search"})
"""Groups that say how points are measured, and not which points there are."""


@dataclass(frozen=True)
class Head:
    """What a report is about, in words.

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
    """The head of one sweep's report."""
    record = sweep.record
    return Head(
        title=f"Sweep {record.name}",
        kicker=f"Trisweep report of sweep {record.name}",
        question=record.spec.question,
        note=_note(sweep),
        origin=f"Sweep planned with git {record.git_sha}.",
    )


def _note(sweep: Sweep) -> str:
    """Which points there are, where they are not those of the sweep's file."""
    changed = ", ".join(Overrides.parse(sweep.record.overrides).without(HOW).texts)
    if sweep.folder.reports_a_part:
        return f"A part of the sweep: {changed}."
    return f"The sweep as it is filed, but with: {changed}." if changed else ""
