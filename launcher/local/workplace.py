"""This machine as a workplace: as many trials at once as fit without disturbing each other."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from launcher.control.workplace import ChargedTime, Workplace
from launcher.job_payload import FolderWork
from launcher.local.machine import (
    EXTRA_MINUTES,
    Ledger,
    LocalJobFunction,
    MachineCapacity,
    Share,
    end_trees,
    is_running_here,
    memory_needed,
    start_job,
    supervisor_of,
    why_impossible,
)
from sweeps.folder.submission import Submission, read_submission, shape_of
from sweeps.reading import Reading, TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import Trial
from train_core.job.failures import without_numbers
from train_core.trial.folder import result_in
from train_core.trial.logs import last_lines
from train_core.trial.measurement import Measurement, Outcome

MOST_UNSEEN_ENDS = 3
"""A trial whose last attempt ended without a word, and unseen, is not tried again after so many attempts."""

AnyReading = TypeVar("AnyReading", bound=Reading)
Charges = Callable[[Sequence[TrialReading]], Mapping[str, ChargedTime]]
"""Tells what others charge for trials of the sweep that an earlier command ran elsewhere."""


class RunningHere(NamedTuple):
    """The state of a job of this machine whose process runs, and which may not have taken its folder's lock yet."""

    name: str = "RUNNING"
    is_live: bool = True
    is_waiting: bool = False
    why_given_up: str = ""
    cause: str = ""
    reason: str = ""


def look_here(reading: AnyReading) -> AnyReading:
    """The same reading; where this machine runs the job, it says that the job runs, or else what it has printed."""
    submission = None if reading.measurement else reading.submission
    if submission is None or reading.is_in_slurm:
        return reading
    if supervisor_of(submission) is not None:
        return replace(reading, job=RunningHere())
    printed = result_in(submission.output_of(0), reading.planned.fingerprint)
    return with_end(reading, printed) if printed else reading


def with_end(reading: AnyReading, end: Measurement) -> AnyReading:
    """The reading, read again after this end of its job was written into its folder."""
    try:
        reading.folder.write_verdict(end)
    except OSError:  # the disk is full or read-only, and whoever looks next concludes the same
        return reading
    return replace(reading)  # a copy reads the folder anew, and so finds the verdict


@dataclass
class ThisMachine(Workplace):
    """Runs the trials of one sweep on this machine.

    Attributes:
        time_limit_seconds: of each trial.
        job: what runs one trial, given its folder, its devices and the time limit.
        running: started by this process (with its process) or adopted from a sweep that died (None).
    """

    machine: MachineCapacity
    snapshot: Callable[[], Path]
    time_limit_seconds: float | None
    job: LocalJobFunction
    charges: Charges = lambda readings: {}
    running: dict[str, tuple[Trial, subprocess.Popen[bytes] | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.machine)
        self._sweep: Sweep | None = None
        self._still: dict[str, TrialReading] = {}

    @cached_property
    def code(self) -> Path:
        return self.snapshot()

    def read_trials(self, sweep: Sweep) -> list[TrialReading]:
        """Return how every trial stands. Only running ones are read again, as that takes time from measured cores.

        So are those that the sweep's record has since given another role.
        """
        self._sweep = sweep
        for trial_id in [trial_id for trial_id in self.running if self._has_ended(trial_id)]:
            self._settle(sweep, *self._forget(trial_id))
        for trial in sweep.record.trials:
            if trial.trial_id not in self._still and trial.experiment is not None:
                self._adopt_if_running(sweep, trial)
            still = self._still.get(trial.trial_id)
            if trial.trial_id in self.running or still is None or still.trial is not trial:
                self._still[trial.trial_id] = look_here(sweep.read_trial(trial))
        return [self._still[trial.trial_id] for trial in sweep.record.trials]

    def start(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
        """Start trials in their order, except that a smaller one may pass one that waits for more than is free."""
        self._sweep = sweep
        return [reading.name for reading in readings if self._starts(sweep, reading.trial)]

    def end(self, readings: Sequence[TrialReading], outcome: Outcome, cause: str) -> None:
        self._interrupt([reading.name for reading in readings])
        for reading in readings:
            if reading.name in self.running:
                self._forget(reading.name)
            self._still.pop(reading.name, None)
            started = reading.submission.submitted if reading.submission else time.time()
            ended = without_numbers(reading.planned.fingerprint, outcome, cause, started)
            # It may have ended by itself before the signal came, and then its own result stays.
            if reading.folder.read_measurement() is None or reading.outcome is Outcome.CANCELLED:
                reading.folder.write_measurement(ended)

    def charged_times(self, readings: Sequence[TrialReading]) -> Mapping[str, ChargedTime]:
        return self.charges(readings)

    def room(self) -> int | None:
        free = self.ledger.free_devices() if self.machine.num_devices else range(self.ledger.free_cores())
        return len(free)

    def has_news(self) -> bool:
        return any(self._has_ended(trial_id) for trial_id in self.running)

    def interrupt_all(self) -> None:
        """End every job without writing how: the trials can be run again."""
        self._interrupt(list(self.running))
        for trial_id in list(self.running):
            self._forget(trial_id)

    def wait_for_ends(self) -> None:
        """Wait until the processes of trials that have left their measurement are gone."""
        for _, process in self.running.values():
            if process is not None:
                process.wait()

    def _adopt_if_running(self, sweep: Sweep, trial: Trial) -> None:
        """Let a job go on that outlived its sweep.

        Nobody knows any more which cores and devices it was given, so it counts as holding them all.
        """
        folder = sweep.folder_of(trial)
        if trial.trial_id in self.running or not is_running_here(folder, read_submission(folder)):
            return
        memory = memory_needed(trial.planned, trial.estimate, self.machine)
        devices = tuple(range(self.machine.num_devices))
        self.ledger.shares[trial.trial_id] = Share(self.machine.num_cores, memory, devices)
        self.running[trial.trial_id] = (trial, None)

    def _starts(self, sweep: Sweep, trial: Trial) -> bool:
        if trial.trial_id in self.running:  # its last attempt has left a measurement, and is just ending
            return False
        if reason := why_impossible(trial.planned, trial.estimate, self.machine):
            self._refuse(sweep, trial, reason)
            return False
        share = self.ledger.take(trial)
        if share is None:
            return False
        # The number of the attempt is read before `prepare` forgets what earlier attempts left.
        attempt = sweep.read_trial(trial).next_attempt
        work = FolderWork(sweep.prepare(trial), attempt)
        shape = shape_of(trial.planned)
        process = start_job(self.job, work, shape, self.code, share.devices, self.time_limit_seconds)
        self.running[trial.trial_id] = (trial, process)
        return True

    def _refuse(self, sweep: Sweep, trial: Trial, reason: str) -> None:
        folder = sweep.folder_of(trial)
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.write_measurement(without_numbers(trial.planned.fingerprint, Outcome.INFEASIBLE, reason, time.time()))
        self._still.pop(trial.trial_id, None)

    def _has_ended(self, trial_id: str) -> bool:
        assert self._sweep is not None
        (_, process), folder = self.running[trial_id], self._sweep.folder.trial(trial_id)
        # submitit's controller may have been killed alone, while the supervisor below it lives and holds the folder.
        if process is not None:
            return process.poll() is not None and not folder.is_running_here()
        return not is_running_here(folder, read_submission(folder))

    def _forget(self, trial_id: str) -> tuple[Trial, subprocess.Popen[bytes] | None]:
        self.ledger.give_back(trial_id)
        self._still.pop(trial_id, None)
        return self.running.pop(trial_id)

    def _settle(self, sweep: Sweep, trial: Trial, process: subprocess.Popen[bytes] | None) -> None:
        """Conclude on a job that ended without a word: it failed. An adopted one, whose end nobody saw, runs again."""
        folder = sweep.folder_of(trial)
        submission = read_submission(folder)
        if submission is None or folder.read_measurement() is not None:
            return
        if process is not None or submission.attempt >= MOST_UNSEEN_ENDS:
            printed = result_in(submission.output_of(0), trial.planned.fingerprint)
            folder.write_verdict(printed or _death_measurement(trial, submission, self.time_limit_seconds))

    def _interrupt(self, trial_ids: Sequence[str]) -> None:
        assert self._sweep is not None
        submissions = [read_submission(self._sweep.folder.trial(trial_id)) for trial_id in trial_ids]
        end_trees(supervisor for each in submissions if each and (supervisor := supervisor_of(each)))
        for trial_id in trial_ids:
            # Waited for, or it would stay a zombie for as long as this process lives.
            process = self.running[trial_id][1] if trial_id in self.running else None
            if process is not None:
                process.wait()


@dataclass
class MachineOnPaper(Workplace):
    """This machine in a dry run: it starts nothing, and keeps why it could not run a trial.

    Attributes:
        refused: the reasons, by the ids of the trials.
    """

    machine: MachineCapacity
    charges: Charges = lambda readings: {}
    refused: dict[str, str] = field(default_factory=dict)

    def read_trials(self, sweep: Sweep) -> list[TrialReading]:
        return [look_here(sweep.read_trial(trial)) for trial in sweep.record.trials]

    def start(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
        whys = {each.name: why_impossible(each.planned, each.trial.estimate, self.machine) for each in readings}
        self.refused |= {name: why for name, why in whys.items() if why}
        return [name for name, why in whys.items() if not why]

    def charged_times(self, readings: Sequence[TrialReading]) -> Mapping[str, ChargedTime]:
        return self.charges(readings)

    def end(self, readings: Sequence[TrialReading], outcome: Outcome, cause: str) -> None:
        """Leave the trials as they are."""


def _death_measurement(trial: Trial, submission: Submission, time_limit_seconds: float | None) -> Measurement:
    words = last_lines(submission.error_of(0), submission.output_of(0))
    # The supervisor writes a time-out itself. It was silent that long only if submitit had to end it.
    limit = time_limit_seconds + 60 * EXTRA_MINUTES if time_limit_seconds else float("inf")
    if time.time() - submission.submitted >= limit:
        cause = "did not stop at its time limit and was killed"
        return without_numbers(trial.planned.fingerprint, Outcome.TIMED_OUT, cause, submission.submitted, words)
    cause = "the job's supervisor ended without writing a measurement (killed, or it could not start)"
    return without_numbers(trial.planned.fingerprint, Outcome.FAILED, cause, submission.submitted, words)
