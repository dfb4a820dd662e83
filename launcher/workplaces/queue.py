"""Slurm's queue as a workplace: it takes any number of trials, and runs them when it likes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from conf.types.sites import SlurmSpec
from launcher.cancel import cancel_jobs
from launcher.control.workplace import Workplace
from launcher.executor import RUN_IN_SLURM
from launcher.slurm.executor import SlurmJob, TooManyJobs
from launcher.state import reconcile
from launcher.workplaces.submission import SubmittedArray, submit_trials
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from train_core.job.failures import without_numbers
from train_core.measurement import Outcome


@dataclass
class SlurmQueue(Workplace):
    """Submits trials as Slurm jobs.

    Attributes:
        job: what each task of a job calls with the trial folder.
        arrays: what this process submitted so far.
        refusal: Slurm's last word that it takes no more jobs now; None once it takes some again.
    """

    slurm: SlurmSpec
    job: SlurmJob = RUN_IN_SLURM
    arrays: list[SubmittedArray] = field(default_factory=list)
    refusal: TooManyJobs | None = None

    def __post_init__(self) -> None:
        self._ended: dict[str, TrialReading] = {}

    def read_trials(self, sweep: Sweep) -> list[TrialReading]:
        """Trials whose end is known are not read again: there may be thousands, and the look comes twice a minute.

        A job that Slurm could not start, and holds for good, is ended: another one may take its place.
        """
        open_trials = [trial for trial in sweep.record.trials if trial.trial_id not in self._ended]
        readings = {each.name: each for each in reconcile(sweep.read_trial(trial) for trial in open_trials)}
        for each in [each for each in readings.values() if each.awaits_slurm and each.job and each.job.why_given_up]:
            self.end(sweep, [each], Outcome.NODE_FAILED, each.cause)
            readings[each.name] = sweep.read_trial(each.trial)
        self._ended |= {name: each for name, each in readings.items() if each.measurement is not None}
        return [readings.get(trial.trial_id) or self._ended[trial.trial_id] for trial in sweep.record.trials]

    def start(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
        """Submit the trials; where Slurm takes no more jobs for now, the rest is left to a later step."""
        for each in readings:
            self._ended.pop(each.name, None)
        self.refusal = None
        try:
            self.arrays += submit_trials(sweep, self.slurm, readings, self.job, ended=self._ended)
        except TooManyJobs as refusal:
            self.refusal = refusal
        before = {each.name: each.submission for each in readings}
        now = (sweep.read_trial(each.trial) for each in readings)
        return [each.name for each in now if each.submission is not None and each.submission != before[each.name]]

    def end(self, sweep: Sweep, readings: Sequence[TrialReading], outcome: Outcome, cause: str) -> None:
        cancel_jobs([each.submission for each in readings if each.submission and each.measurement is None])
        for reading in readings:
            self._ended.pop(reading.name, None)
            measurement = reading.folder.read_measurement()
            # It may have ended by itself meanwhile, and then its own result stays.
            if measurement is not None and measurement.outcome is not Outcome.CANCELLED:
                continue
            started = reading.submission.submitted if reading.submission else time.time()
            reading.folder.write_measurement(without_numbers(reading.planned.fingerprint, outcome, cause, started))


class Elsewhere(SlurmQueue):
    """The allocation of a sweep, for commands on a login node, which still find out whether anything is left to run."""

    def start(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
        return []

    def room(self) -> int | None:
        # Any number above 0, so that a search is asked whether it has more to propose.
        return 1
