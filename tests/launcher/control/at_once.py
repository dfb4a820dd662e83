"""A place in which every trial runs when it is started, for tests of what is started, when and after what."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.control.workplace import Workplace
from launcher.local.machine import LocalJobFunction
from sweeps.folder.submission import Submission, shape_of, write_submission
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import Trial
from train_core.job.failures import without_numbers
from train_core.trial.measurement import Outcome


@dataclass(frozen=True)
class AtOnce(Workplace):
    """Calls each job instead of starting a process, which takes a second. On disk there is the same afterwards."""

    job: LocalJobFunction

    def read_trials(self, sweep: Sweep) -> list[TrialReading]:
        return sweep.read()

    def start(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
        for reading in readings:
            self._run(sweep, reading.trial)
        return [reading.name for reading in readings]

    def end(self, readings: Sequence[TrialReading], outcome: Outcome, cause: str) -> None:
        raise AssertionError("nothing runs between two steps")

    def has_news(self) -> bool:
        return True

    def _run(self, sweep: Sweep, trial: Trial) -> None:
        assert trial.experiment is not None
        attempt, started = sweep.read_trial(trial).next_attempt, time.time()
        folder = sweep.prepare(trial)
        submission = Submission(
            executor="local",
            job_id="0",
            hostname=socket.gethostname(),
            attempt=attempt,
            submitted=started,
            shape=shape_of(trial.experiment),
            output=str(folder.logs / "%j_%t_log.out"),
            error=str(folder.logs / "%j_%t_log.err"),
        )
        write_submission(folder, submission)
        try:
            self.job(str(folder.path), (), None)
        except ValueError as error:
            failed = without_numbers(trial.experiment.fingerprint, Outcome.FAILED, str(error), started)
            folder.write_verdict(failed)
