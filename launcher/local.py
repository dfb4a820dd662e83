"""Running a sweep on this machine: as many trials at once as fit without disturbing each other."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from conf.experiment import Experiment
from launcher.capacity import Ledger, Machine, Share, memory_needed, why_impossible
from launcher.executor import Work
from launcher.local_jobs import (
    EXTRA_MINUTES,
    LocalExecutor,
    LocalJobFunction,
    controller_of,
    is_running_here,
)
from launcher.processes import end_trees
from launcher.progress import Progress
from launcher.silent_jobs import TRACEBACK_LINES
from launcher.state import seen_here
from sweeps.logs import tail
from sweeps.reading import TrialReading
from sweeps.submission import Submission, read_submission, shape_of
from sweeps.sweep import Sweep
from sweeps.trial import Trial
from train_core.job.failures import without_numbers
from train_core.measurement import Measurement, Outcome

POLL_SECONDS = 0.2
SHOW_SECONDS = 1.0
"""The table is drawn no more often, because the cores belong to what is being measured."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class LocalSweep:
    """Runs the trials of one sweep on this machine.

    Attributes:
        code: the snapshot that jobs run.
        waiting: not started yet, in order.
        running: started by this process (with its process) or adopted from a sweep that died (None).
        interrupted: a signal asked to stop.
    """

    sweep: Sweep
    machine: Machine
    code: Path
    time_limit_seconds: float | None
    job: LocalJobFunction
    waiting: list[Trial] = field(default_factory=list)
    running: dict[str, subprocess.Popen[bytes] | None] = field(default_factory=dict)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.machine)
        self._still: dict[str, TrialReading] = {}

    def run(self, trials: list[Trial], progress: Progress) -> None:
        """Run the trials, and return when every one of them has ended.

        Raises:
            KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP came. The jobs have been ended; the trials can be run again.
        """
        with self._signals_noted():
            self._admit(trials)
            shown = 0.0
            while (self.waiting or self.running) and not self.interrupted:
                self._start_what_fits()
                if time.monotonic() - shown >= SHOW_SECONDS:
                    progress.show(self._states())
                    shown = time.monotonic()
                time.sleep(POLL_SECONDS)
                if not self.interrupted:  # a job that the same signal ended has not failed
                    self._collect_ended()
            progress.show(self._states())
            if self.interrupted:
                self._cancel()
                raise KeyboardInterrupt

    def _states(self) -> list[TrialReading]:
        """How every trial stands. Only running ones are read again, as reading takes time from the measured cores."""
        for trial in self.sweep.record.trials:
            if trial.trial_id in self.running or trial.trial_id not in self._still:
                self._still[trial.trial_id] = seen_here(self.sweep.read_trial(trial))
        return [self._still[trial.trial_id] for trial in self.sweep.record.trials]

    @contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Let signals only set a flag, so that none can come between starting a job and writing it down."""
        # Python allows only the main thread to set signal handlers.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        heard = [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._note) for number in heard}  # under nohup SIGHUP stays ignored
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True

    def _admit(self, trials: list[Trial]) -> None:
        for trial in trials:
            folder = self.sweep.folder_of(trial)
            if is_running_here(folder, read_submission(folder)):
                self._adopt(trial)
            elif reason := why_impossible(_experiment(trial), trial.estimate, self.machine):
                self._refuse(trial, reason)
            else:
                self.waiting.append(trial)

    def _adopt(self, trial: Trial) -> None:
        """Let a job go on that outlived its sweep.

        Nobody knows any more which cores and devices it was given, so it counts as holding them all.
        """
        memory = memory_needed(_experiment(trial), trial.estimate, self.machine)
        devices = tuple(range(self.machine.num_devices))
        self.ledger.shares[trial.trial_id] = Share(self.machine.num_cores, memory, devices)
        self.running[trial.trial_id] = None

    def _refuse(self, trial: Trial, reason: str) -> None:
        folder = self.sweep.folder_of(trial)
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.write_measurement(
            without_numbers(_experiment(trial).fingerprint, Outcome.INFEASIBLE, reason, time.time())
        )

    def _start_what_fits(self) -> None:
        """Start trials in their order, except that a smaller one may pass one that waits for more than is free."""
        for trial in list(self.waiting):
            if self.interrupted:
                return
            share = self.ledger.take(trial)
            if share is None:
                continue
            self.waiting.remove(trial)
            # The number of the attempt is read before `prepare` forgets what earlier attempts left.
            attempt, lost_nodes = self.sweep.read_trial(trial).next_attempt
            work = Work(self.sweep.prepare(trial), attempt, lost_nodes)
            executor = LocalExecutor(self.code, share.devices, self.time_limit_seconds)
            executor.submit(self.job, [work], shape_of(_experiment(trial)))
            self.running[trial.trial_id] = executor.process

    def _collect_ended(self) -> None:
        for trial in self.sweep.record.trials:
            if trial.trial_id in self.running and self._has_ended(trial.trial_id):
                process = self.running.pop(trial.trial_id)
                self.ledger.give_back(trial.trial_id)
                self._still.pop(trial.trial_id, None)
                self._settle(trial, process)

    def _has_ended(self, trial_id: str) -> bool:
        process, folder = self.running[trial_id], self.sweep.folder.trial(trial_id)
        # submitit's controller may have been killed alone, while the supervisor below it lives and holds the folder.
        if process is not None:
            return process.poll() is not None and not folder.is_running_here()
        return not is_running_here(folder, read_submission(folder))

    def _settle(self, trial: Trial, process: subprocess.Popen[bytes] | None) -> None:
        """Conclude on a job that ended without a word: it failed. An adopted one, whose end nobody saw, runs again."""
        folder = self.sweep.folder_of(trial)
        submission = read_submission(folder)
        if folder.read_measurement() is not None:
            return
        if process is None or submission is None:
            self.waiting.append(trial)
            return
        folder.write_verdict(_died(trial, submission, self.time_limit_seconds))

    def _cancel(self) -> None:
        submissions = [read_submission(self.sweep.folder.trial(trial_id)) for trial_id in self.running]
        controllers = [controller_of(submission) for submission in submissions if submission]
        end_trees([controller for controller in controllers if controller])
        for process in self.running.values():
            if process is not None:
                process.wait()


def _died(trial: Trial, submission: Submission, time_limit_seconds: float | None) -> Measurement:
    said = "\n".join(filter(None, (tail(submission.error_of(0)), tail(submission.output_of(0)))))
    words = "\n".join(said.splitlines()[-TRACEBACK_LINES:])
    # The supervisor writes a time-out itself. It was silent that long only if submitit had to end it.
    limit = time_limit_seconds + 60 * EXTRA_MINUTES if time_limit_seconds else float("inf")
    if time.time() - submission.submitted >= limit:
        cause = "did not stop at its time limit and was killed"
        return without_numbers(_experiment(trial).fingerprint, Outcome.TIMED_OUT, cause, submission.submitted, words)
    cause = "the job's supervisor ended without writing a measurement (killed, or it could not start)"
    return without_numbers(_experiment(trial).fingerprint, Outcome.FAILED, cause, submission.submitted, words)


def _experiment(trial: Trial) -> Experiment:
    assert trial.experiment is not None
    return trial.experiment
