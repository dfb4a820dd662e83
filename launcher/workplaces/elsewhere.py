"""A workplace seen from outside: trials run there, and only whoever carries the sweep out there starts them."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.workplaces.queue import SlurmQueue
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep


class Elsewhere(SlurmQueue):
    """The allocation of a sweep, for commands on a login node, which still find out whether anything is left to run."""

    def start(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
        return []

    def room(self) -> int | None:
        return 1
