"""The search of a sweep whose points are all listed beforehand: it proposes nothing further."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.reading import TrialReading
from sweeps.search.searcher import Answer, Pruning, Search


@dataclass(frozen=True)
class Listed(Search):
    """Grid and planner: every trial is in the record from the start."""

    def ask(self, trials: Sequence[TrialReading], count: int) -> Answer:
        return Answer(finished="every listed point was tried")

    def prune(self, trials: Sequence[TrialReading]) -> list[Pruning]:
        return []

    def lessons(self, trials: Sequence[TrialReading]) -> list[str]:
        return []
