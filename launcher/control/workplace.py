"""The interfaces of a sweep that is carried out: the place where its trials run, and what shows how they stand.

A workplace keeps nothing that is not on disk or in Slurm, so that any process may go on where another was killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from conf.visible import visible
from launcher.refused import PartlyRefused
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from train_core.trial.measurement import Outcome


class Unanswered(PartlyRefused):
    """The place did not say whether it took the jobs; their submissions stay, and the next command asks for them."""


class ChargedTime(NamedTuple):
    """The time for which a place charges the last job of a trial.

    Attributes:
        seconds: of all its runs, each from its start there, those before a requeue included.
        is_over: no further second comes to it.
    """

    seconds: float
    is_over: bool


class Workplace(Protocol):
    """Starts, watches and ends trials. Whoever calls it holds the lock of the sweep's folder; a dry run holds none."""

    def read_trials(self, sweep: Sweep) -> list[TrialReading]:
        """Read how every trial stands, asking Slurm or this machine too; ends that are certain are written down."""

    def start(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
        """Start those of the trials for which there is room now, in their order, and return their ids.

        Raises:
            UsageError: the place refuses the request itself, and not only for now.
        """

    def end(self, readings: Sequence[TrialReading], outcome: Outcome, cause: str) -> None:
        """End the trials' jobs, and write down how they ended: CANCELLED or PRUNED."""

    def charged_times(self, readings: Sequence[TrialReading]) -> Mapping[str, ChargedTime]:
        """Map the names of ended trials to the time that is charged, as far as those who charge for it have told."""
        return {}

    def room(self) -> int | None:
        """Return how many further trials could start now; None if the place takes any number and queues them."""
        return None

    def has_news(self) -> bool:
        """True if a trial has ended since `read_trials` was called, as far as that is seen without asking anybody."""
        return False

    def is_given_back(self) -> bool:
        """True if the place is given back, so that nothing runs there any more and nothing further can."""
        return False


class ProgressDisplay(Protocol):
    """A display of a running sweep: a context, entered when trials start and left when all have ended."""

    def show(self, readings: Sequence[TrialReading]) -> None: ...

    def say(self, text: str) -> None:
        """Show a line that is no state of a trial, such as what went wrong and is tried again."""
        print(visible(text), flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
