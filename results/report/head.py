"""What stands above and below the sections of a report."""

from __future__ import annotations

from dataclasses import dataclass

from sweeps.trial import SweepRecord


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


def head_of(record: SweepRecord) -> Head:
    """The head of one sweep's report."""
    restricted = f"Not the whole sweep as it is filed, but with: {', '.join(record.overrides)}" * bool(record.overrides)
    return Head(
        title=f"Sweep {record.name}",
        kicker=f"Trisweep report of sweep {record.name}",
        question=record.spec.question,
        note=restricted,
        origin=f"Sweep planned with git {record.git_sha}.",
    )
