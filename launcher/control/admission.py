"""Which trials may start in one step: as many as there are slots, and as the budget bears, in their order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from launcher.control.attempts import num_runs
from launcher.control.budget import Budget
from sweeps.folder.history import History
from sweeps.reading import TrialReading
from sweeps.trial import Trial


@dataclass
class Admission:
    """Admits trials one after another, until the first that the budget does not bear.

    Attributes:
        slots: how many more may be queued or running; None sets no limit.
        held: why the budget admits no further trial, and which would have been next; empty while it admits.
    """

    budget: Budget
    history: History
    slots: int | None
    flying: Sequence[TrialReading]
    held: str = ""
    _spent: float = field(init=False)

    def __post_init__(self) -> None:
        if self.slots is not None:
            self.slots = max(0, self.slots - len(self.flying))
        self._spent = self.history.device_seconds + sum(
            self.budget.at_most(each.trial) * num_runs(each) for each in self.flying
        )

    def admits(self, trial: Trial) -> bool:
        """Whether the trial may start; it then counts as if it had."""
        if self.held or self.slots == 0:
            return False
        reason = self.budget.why_not(trial, self._spent) or self._why_too_late(trial)
        if reason:
            why = f" ({trial.chosen_because})" if trial.chosen_because else ""
            self.held = f"{reason}. Next would have been {trial.trial_id}{why}"
            return False
        self._spent += self.budget.at_most(trial)
        self.slots = None if self.slots is None else self.slots - 1
        return True

    def _why_too_late(self, trial: Trial) -> str:
        now = time.time()
        begun = self.history.first_begun or now
        return self.budget.why_too_late(begun, now, self.budget.seconds_at_most(trial))
