"""One calibration as a job: processes of this machine, or a Slurm job. Either is waited for, and ended by Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from conf.errors import UsageError
from conf.types.sites import SlurmSpec
from launcher.job_payload import MEASURE_RATES_IN_SLURM, FolderWork
from launcher.provenance import snapshot_code
from launcher.refused import FilesBefore, put_back_if_refused
from launcher.slurm.executor import SlurmExecutor, require_sbatch
from launcher.slurm.job_status import cancel_jobs, standings
from launcher.slurm.query import SlurmSilent
from launcher.slurm.verdict import is_settled, why_ended
from rates.record import DeviceRates, RatesFolder, RatesPlan
from sweeps.folder.submission import JobShape, Submission, read_submission
from train_core.job.failures import CULPRIT_GRACE_SECONDS, first_cause, lost_a_peer, oom_kill_count, silent_failure
from train_core.process.git_sha import variables_of
from train_core.process.stop import cancelled_by_signals
from train_core.trial.measurement import RankFailure

JOB_NAME = "trisweep-calibrate"
POLL_SECONDS = 0.5
SLURM_POLL_SECONDS = 2.0
FORGOTTEN_SECONDS = 120.0
"""A job that Slurm still does not know so long after its submission never existed, or ended long ago."""

Tell = Callable[[str], None]


class Here:
    """Ranks as processes of this machine."""

    place = "on this machine"

    def request(self, folder: RatesFolder) -> None:
        """No text, as no Slurm is asked."""

    def measure(self, folder: RatesFolder, plan: RatesPlan, tell: Tell) -> DeviceRates:
        """Return when all is measured; raises UsageError with the cause where a rank failed. Ctrl-C ends all ranks."""
        folder.prepare(plan)
        oom_kills = oom_kill_count()
        ranks: list[subprocess.Popen[bytes]] = []
        # The ranks meet in a new file: in one of an earlier run they would find ranks that are gone.
        with tempfile.TemporaryDirectory(prefix="trisweep-") as meeting, cancelled_by_signals():
            try:
                meet = Path(meeting) / "rendezvous"
                ranks.extend(_start(folder, rank, plan.world_size, meet) for rank in range(plan.world_size))
                # As soon as a rank fails the others are ended: they would wait for it in a collective.
                while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
                    tell(folder.last_line())
                    time.sleep(POLL_SECONDS)
                if any(rank.poll() for rank in ranks):
                    raise _measurement_error(folder, _culprit(folder, ranks, oom_kills))
            finally:
                for process in ranks:
                    process.kill()
                    process.wait()
        return _rates_of(folder)


@dataclass(frozen=True)
class InSlurm:
    """One Slurm job, one task per device."""

    slurm: SlurmSpec
    shape: JobShape
    place: ClassVar[str] = "in a Slurm job"

    def request(self, folder: RatesFolder) -> str:
        """The text that sbatch would get. Writes nothing and needs no Slurm."""
        return self._executor(folder, folder.code.absolute() / "SNAPSHOT").text(self.shape, 1)

    def measure(self, folder: RatesFolder, plan: RatesPlan, tell: Tell) -> DeviceRates:
        """Return when all is measured; raises as `Here` does."""
        require_sbatch(self.slurm)
        with cancelled_by_signals():
            with put_back_if_refused(FilesBefore.of_job(folder, *folder.logs.glob("*"))):
                folder.prepare(plan)
                submission = self._submit(folder)
            try:
                _wait(folder, submission, tell)
            except BaseException:
                # A sweep's jobs may outlive their command; this one would measure for nobody.
                cancel_jobs([submission])
                raise
        return _rates_of(folder)

    def _submit(self, folder: RatesFolder) -> Submission:
        executor = self._executor(folder, snapshot_code(folder.code.absolute()))
        executor.submit(MEASURE_RATES_IN_SLURM, [FolderWork(folder, attempt=1)], self.shape)
        submission = read_submission(folder)
        assert submission is not None, "it has just been written"
        return submission

    def _executor(self, folder: RatesFolder, code: Path) -> SlurmExecutor:
        return SlurmExecutor(self.slurm, JOB_NAME, code, folder.submitit.absolute())


def _start(folder: RatesFolder, rank: int, size: int, meeting: Path) -> subprocess.Popen[bytes]:
    """Start a rank, which runs this very code whatever lies in the current folder."""
    place = ["--rank", str(rank), "--size", str(size), "--meeting", str(meeting)]
    with folder.rank_log(rank).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rates.device", str(folder.path), *place],
            env={**os.environ, **variables_of()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _culprit(folder: RatesFolder, ranks: Sequence[subprocess.Popen[bytes]], oom_kills_before: int) -> RankFailure:
    """The failure that caused the others: where one only lost its peer, the peer's own is waited for a little."""
    deadline = time.monotonic() + CULPRIT_GRACE_SECONDS
    while True:
        reported = folder.read_failures()
        oom_kills = oom_kill_count() - oom_kills_before
        silent = [
            silent_failure(rank, process.returncode, oom_kills, folder.rank_log(rank))
            for rank, process in enumerate(ranks)
            if process.poll() and rank not in {failure.rank for failure in reported}
        ]
        failure = first_cause([*reported, *silent])
        assert failure is not None, "some rank has ended badly"
        if not lost_a_peer(failure) or time.monotonic() > deadline or all(p.poll() is not None for p in ranks):
            return failure
        time.sleep(POLL_SECONDS)


def _wait(folder: RatesFolder, submission: Submission, tell: Tell) -> None:
    """Wait until the rates are there. Raises UsageError where the job has ended without them."""
    while not folder.rates.exists():
        try:
            submission, state, _ = standings([submission])[0]
        except SlurmSilent:
            tell(f"job {submission.job_id}: Slurm does not answer")
        else:
            # The accounting learns of a job late, so a young one that is not known yet is not a failure.
            forgotten = state is None and time.time() - submission.submitted > FORGOTTEN_SECONDS
            # The rates may have appeared while Slurm was asked, hence the second look.
            if (forgotten or (state and is_settled(state))) and not folder.rates.exists():
                raise _measurement_error(folder, why_ended(folder, submission, state), submission.error_of(0))
            waits = state is None or state.is_waiting
            words = "waits in the queue" if waits else folder.last_line() or "starts"
            tell(f"job {submission.job_id}: {words}")
        time.sleep(SLURM_POLL_SECONDS)


def _measurement_error(folder: RatesFolder, failure: RankFailure, log: Path | None = None) -> UsageError:
    log = log or folder.rank_log(max(0, failure.rank))
    who = f"rank {failure.rank}: " if failure.rank >= 0 and not failure.cause.startswith("rank ") else ""
    return UsageError(f"The measurement failed ({who}{failure.cause})", f"See {log}. No cluster file was changed.")


def _rates_of(folder: RatesFolder) -> DeviceRates:
    rates = folder.read_rates()
    if rates is None:
        raise UsageError(f"{folder.rates} is missing or cannot be read", "Calibrate again.")
    return rates
