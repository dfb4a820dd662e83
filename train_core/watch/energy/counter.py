"""One counter of energy, and how it is followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

CountedPart = Literal["device", "host"]


@dataclass(frozen=True)
class EnergyCounter:
    """A counter that only grows, but for starting again.

    Attributes:
        name: what it counts, unique on its machine; ranks that read the same counter name it alike.
        kind: what it is called in reports.
        counts: whether it counts what a job is charged for (its devices), or the machine around them.
        read: joules since some instant; None where the counter does not answer.
        wraps_at: joules after which it starts again from zero; None where it never does.
        share: the part of its energy that belongs to the rank, where it counts for several devices.
    """

    name: str
    kind: str
    counts: CountedPart
    read: Callable[[], float | None]
    wraps_at: float | None = None
    share: float = 1.0


class FollowedCounter:
    """The joules that a counter has counted since it was first read.

    Attributes:
        joules: the rank's share of them; None once the counter did not answer.
    """

    def __init__(self, counter: EnergyCounter) -> None:
        self.counter = counter
        self._last = counter.read()
        self.joules = None if self._last is None else 0.0

    def follow(self) -> None:
        """Add what was counted since the last reading, which is to be less long ago than the counter takes to wrap."""
        now = self.counter.read()
        if now is None or self._last is None or self.joules is None:
            self.joules = None
            return
        counted = now - self._last
        if counted < 0:  # it has started again
            counted += self.counter.wraps_at or 0.0
        self.joules += max(0.0, counted) * self.counter.share
        self._last = now
