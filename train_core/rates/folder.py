"""The folder of one calibration: what it is to measure, how far it is, and the rates that it found."""

from __future__ import annotations

import contextlib

from train_core.rates.record import DeviceRates, RatesPlan
from train_core.trial_folder import JobFolder, PathInside
from train_core.whole_files import write_atomically


class RatesFolder(JobFolder):
    """One calibration on disk; besides what every job's folder has:

    calibrate.lock  held (flock) by the one process that calibrates
    plan.json       the `RatesPlan`; written by that process
    progress        one line for every part that rank 0 begins
    rates.json      the `DeviceRates`, once all is measured
    """

    lock = PathInside("calibrate.lock")
    plan = PathInside("plan.json")
    progress = PathInside("progress")
    rates = PathInside("rates.json")

    def prepare(self, plan: RatesPlan) -> None:
        """Forget an earlier calibration and write what this one measures."""
        self.forget_failures()
        for path in (self.progress, self.rates, self.submission, *self.logs.glob("*")):
            path.unlink(missing_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        write_atomically(self.plan, plan.model_dump_json(indent=1))

    def read_plan(self) -> RatesPlan:
        return RatesPlan.model_validate_json(self.plan.read_text())

    def tell(self, line: str) -> None:
        """Add a line for those who wait."""
        with self.progress.open("a") as file:
            file.write(line + "\n")

    def last_told(self) -> str:
        """The newest line; empty before the first."""
        with contextlib.suppress(OSError):
            lines = self.progress.read_text(errors="replace").splitlines()
            return lines[-1] if lines else ""
        return ""

    def write_rates(self, rates: DeviceRates) -> None:
        write_atomically(self.rates, rates.model_dump_json(indent=1))

    def read_rates(self) -> DeviceRates | None:
        """The rates; None until they have been written whole."""
        return self.read(DeviceRates, self.rates)
