"""The rules by which a sweep is carried out, and what one of its steps found and did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from launcher.control.budget import Budget
from sweeps.folder.journal import Entry
from sweeps.points.following import Stages
from sweeps.reading import TrialReading
from sweeps.repeats.rounds import Rounds
from sweeps.search.searcher import Listed, Proposal, Search
from sweeps.sweep import Sweep
from sweeps.trial import Trial

PAUSED = "it is paused"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules by which a sweep is carried out.

    Attributes:
        draft: makes the trial of a point that is proposed; None where none is.
        wants: whether a trial belongs to what the command is to measure.
        rounds: which points are measured again, once the search proposes none; None measures each once.
        stages: what follows trials that have completed.
        max_concurrent_trials: that are queued or running at once; None sets no limit.
        max_trials: how many points a search may come to, the baseline among them; None sets no limit.
        fail_fast: the sweep stops once so many trials have failed since the command was given; None never stops it.
        max_resubmits: how often a trial that lost its node or its place is tried again.
        tell: is told of every step, with the sweep as it stands after it.
    """

    budget: Budget
    search: Search = field(default_factory=Listed)
    draft: Callable[[Proposal], Trial] | None = None
    wants: Callable[[Trial], bool] = lambda trial: True
    rounds: Rounds | None = None
    stages: Stages = field(default_factory=Stages)
    max_concurrent_trials: int | None = None
    max_trials: int | None = None
    fail_fast: int | None = None
    max_resubmits: int = 0
    tell: Callable[[Sweep, SweepStep], None] = lambda sweep, step: None


@dataclass(frozen=True, kw_only=True)
class SweepStep:
    """The findings and actions of one step of a sweep.

    Attributes:
        readings: how the trials stood before anything was started.
        started: ids of the trials that were started.
        news: what was written into the journal.
        num_in_flight: trials that are queued or running now.
        waiting: ids of the trials that are to run and were not started yet.
        held: why nothing further is started, also where the sweep has ended for it; empty where nothing holds it.
        finished: why the sweep has ended; empty where it has not.
    """

    readings: tuple[TrialReading, ...]
    started: tuple[str, ...] = ()
    news: tuple[Entry, ...] = ()
    num_in_flight: int = 0
    waiting: tuple[str, ...] = ()
    held: str = ""
    finished: str = ""

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    def leaves_nothing_to_do(self) -> bool:
        """True if whoever goes on with the sweep would only wait: it has ended, or a person has paused it."""
        return bool(self.finished) or (self.held == PAUSED and not self.num_in_flight)
