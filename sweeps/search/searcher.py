"""The interface of every search. It keeps nothing between two questions, so that any process may ask at any time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from conf.types.schema import Value
from sweeps.folder.journal import ALL_TRIED
from sweeps.reading import TrialReading
from train_core.trial.measurement import Outcome


@dataclass(frozen=True, slots=True)
class Proposal:
    """A point to try, and why, in words for people.

    Attributes:
        expected_gain: by which share of the best it is expected to better it; None where nothing was learned yet.
        repeat: of a further measurement of the same point; see `Trial`.
    """

    point: dict[str, Value]
    because: str
    expected_gain: float | None = None
    repeat: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a search to the question what to try next.

    Attributes:
        proposals: points to try now, the best first. Fewer than were asked for, or none, where it waits for results.
        finished: why no further point is worth trying; empty while the search goes on.
    """

    proposals: tuple[Proposal, ...] = ()
    finished: str = ""


@dataclass(frozen=True, slots=True)
class Pruning:
    """A running trial that is not worth its further steps, and why, in words for people."""

    trial_id: str
    because: str


def num_taken(trials: Sequence[TrialReading]) -> int:
    """The trials that count towards `sweep.max_trials`: those to measure, and those that an earlier command measured.

    The latter count where they are points of the present configuration too, as a search starts from them.
    """
    return sum(
        each.trial.selected or (each.trial.role == "observed" and each.outcome not in (None, Outcome.INFEASIBLE))
        for each in trials
    )


class Search(Protocol):
    """Chooses points one after another. `trials` are all those of the sweep, those that run among them."""

    def ask(self, trials: Sequence[TrialReading], count: int) -> Answer:
        """Up to `count` further points; trials in flight count as tried, and each search assumes values of its own."""

    def prune(self, trials: Sequence[TrialReading]) -> list[Pruning]:
        """The running trials that are clearly worse than the best after the same steps; none unless it says so."""
        return []

    def lessons(self, trials: Sequence[TrialReading]) -> list[str]:
        """Return what the trials have shown about the prediction, a sentence each; none unless it says so."""
        return []


@dataclass(frozen=True)
class Listed(Search):
    """Grid and planner: every trial is in the record from the start."""

    def ask(self, trials: Sequence[TrialReading], count: int) -> Answer:
        return Answer(finished=ALL_TRIED)
