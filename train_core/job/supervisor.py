"""Runs the ranks of a trial as processes of this machine. The first that fails is the cause and ends the others."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from train_core.job.failures import (
    CULPRIT_GRACE_SECONDS,
    ended_by_failure,
    failed_measurement,
    first_cause,
    lost_a_peer,
    oom_kill_count,
    silent_failure,
    without_numbers,
)
from train_core.measurement import Measurement, Outcome, RankFailure, StepMetrics
from train_core.process.stop import STOP_SIGNALS, StopAsked, Stopped, never
from train_core.trial_folder import TrialFolder

PR_SET_PDEATHSIG = 1  # from Linux' <sys/prctl.h>, which Python does not pass on


@dataclass(frozen=True)
class Job:
    """What to supervise.

    Attributes:
        gpus: the GPU of each rank; None runs on the CPU.
        on_step: called in the supervising process for each step.
        stop_asked: the ranks ask it after each step.
    """

    trial: TrialFolder
    world_size: int
    gpus: tuple[int, ...] | None
    time_limit_seconds: float | None
    on_step: Callable[[StepMetrics], None] | None
    stop_asked: StopAsked = never


def supervise(job: Job, fingerprint: str, started: float) -> Measurement:
    """Start the ranks, wait for their end or the first failure, and say how it ended.

    Raises:
        Stopped: they saved and stopped, as they were asked to.
    """
    oom_kills = oom_kill_count()  # the kernel counts since it started, and only what comes from now on is of this job
    with tempfile.TemporaryDirectory(prefix="trisweep-") as meeting:
        ranks = Ranks(job, Path(meeting) / "rendezvous")
        try:
            ranks.start()
            outcome = ranks.watch(time.monotonic() + (job.time_limit_seconds or float("inf")))
            if outcome is Outcome.FAILED:
                failure = ranks.culprit(oom_kills)
                return failed_measurement(fingerprint, failure, started)
        finally:
            ranks.end()
    if outcome is Outcome.TIMED_OUT:
        cause = f"the trial ran longer than its limit of {job.time_limit_seconds:g} s"
        return without_numbers(fingerprint, outcome, cause, started)
    if ranks.stopped is not None:
        raise ranks.stopped
    assert ranks.measurement is not None
    return ranks.measurement.model_copy(update={"started": started, "ended": time.time()})


class Ranks:
    """The processes of one attempt. Rank 0 reports each step, and the end, through a pipe."""

    def __init__(self, job: Job, meeting: Path) -> None:
        self.job, self.meeting = job, meeting
        self.measurement: Measurement | None = None
        self.stopped: Stopped | None = None
        # CUDA cannot be used in a forked process once its parent has initialized it.
        self._context = multiprocessing.get_context("fork" if job.gpus is None else "spawn")
        self._receiver, self._sender = self._context.Pipe(duplex=False)
        self._open = True
        self._processes: list[BaseProcess] = []

    def start(self) -> None:
        """Start a process for each rank. On CPUs they are forked, so that torch is imported only once."""
        if self.job.gpus is None:
            import train_core.job.rank  # noqa: F401

            if self.job.trial.read_experiment().parallel.recompute != "none":
                import torch._dynamo  # noqa: F401  (recomputation needs it; imported here once, and not in every rank)
        self.job.trial.logs.mkdir(parents=True, exist_ok=True)
        # What is still buffered would be copied into every fork, and written once by each.
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(self.job.world_size):
            arguments = (self._seat(rank), self._sender if rank == 0 else None, self.job.stop_asked)
            process = self._context.Process(target=rank_process, args=arguments, name=f"rank-{rank}")  # type: ignore[attr-defined]
            process.start()
            self._processes.append(process)

    def _seat(self, rank: int) -> RankStart:
        job = self.job
        gpu = None if job.gpus is None else job.gpus[rank]
        return RankStart(job.trial.path, rank, job.world_size, self.meeting, gpu, os.getpid())

    def watch(self, deadline: float) -> Outcome:
        """Wait until all ranks have ended well, one has failed, or the deadline (monotonic seconds) has passed."""
        while True:
            # Asked once a round: a rank that died between two questions would count as neither failed nor running.
            exit_codes = [process.exitcode for process in self._processes]
            if any(exit_codes):
                return Outcome.FAILED
            running = [process for process, code in zip(self._processes, exit_codes, strict=True) if code is None]
            if not running:
                self._listen()  # rank 0 may have sent its measurement just before it ended
                return Outcome.COMPLETED
            if (left := deadline - time.monotonic()) <= 0:
                return Outcome.TIMED_OUT
            # A pipe at its end is always ready to be read, and waiting for it would turn this loop into a spin.
            pipe: list[Connection] = [self._receiver] if self._open else []
            wait([*(process.sentinel for process in running), *pipe], None if left == float("inf") else left)
            self._listen()

    def _listen(self) -> None:
        while self._open and self._receiver.poll():
            try:
                message = self._receiver.recv()
            except EOFError:
                self._open = False
                return
            if isinstance(message, Measurement):
                self.measurement = message
            elif isinstance(message, Stopped):
                self.stopped = message
            elif self.job.on_step is not None:
                self.job.on_step(message)

    def culprit(self, oom_kills_before: int) -> RankFailure:
        """The failure that came first. A rank that only lost its peer may be seen before the peer's own end."""
        deadline = time.monotonic() + CULPRIT_GRACE_SECONDS
        while True:
            failure = first_cause(self._failures(oom_kills_before))
            running = [process.sentinel for process in self._processes if process.exitcode is None]
            left = deadline - time.monotonic()
            if failure is not None and (not lost_a_peer(failure) or not running or left <= 0):
                return failure
            wait(running, max(0.0, left))

    def _failures(self, oom_kills_before: int) -> list[RankFailure]:
        told = self.job.trial.read_failures()
        named = {failure.rank for failure in told}
        oom_kills = oom_kill_count() - oom_kills_before
        silent = [
            silent_failure(rank, process.exitcode, oom_kills, rank_log(self.job.trial, rank))
            for rank, process in enumerate(self._processes)
            if process.exitcode and rank not in named
        ]
        return [*told, *silent]

    def end(self) -> None:
        """Kill the ranks that still run: an orderly end could hang, and nothing in a trial is worth that."""
        for process in self._processes:
            if process.exitcode is None:
                process.kill()
        for process in self._processes:
            process.join()
        self._receiver.close()
        self._sender.close()


@dataclass(frozen=True)
class RankStart:
    """What a rank's process is told when it starts.

    Attributes:
        meeting: file through which the ranks find each other.
        gpu: None for the CPU.
    """

    folder: Path
    rank: int
    world_size: int
    meeting: Path
    gpu: int | None
    supervisor: int


def rank_log(trial: TrialFolder, rank: int) -> Path:
    return trial.rank_log(rank)


def rank_process(start: RankStart, sender: Connection | None, stop_asked: StopAsked) -> None:
    """The life of one rank's process."""
    _die_with(start.supervisor)
    for number in STOP_SIGNALS:  # where a signal reaches all processes, such as Ctrl-C, the supervisor acts on it
        signal.signal(number, signal.SIG_DFL if stop_asked is never else signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trial = TrialFolder(start.folder)
    _redirect_output(rank_log(trial, start.rank))
    with ended_by_failure(trial, start.rank):
        message = _run(trial, start, sender, stop_asked)
        if sender is not None:
            sender.send(message)


def _run(
    trial: TrialFolder, start: RankStart, sender: Connection | None, stop_asked: StopAsked
) -> Measurement | Stopped:
    from train_core.job.rank import run_rank
    from train_core.process.world import Seat, file_rendezvous

    seat = Seat(start.rank, start.world_size, start.rank, file_rendezvous(start.meeting))
    kind, index = ("cpu", start.rank) if start.gpu is None else ("gpu", start.gpu)
    try:
        return run_rank(trial, seat, kind, index, sender.send if sender is not None else None, stop_asked)
    except Stopped as stopped:
        return stopped


def _die_with(supervisor: int) -> None:
    """Have the kernel kill this process when the supervisor dies. Only Linux can; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The supervisor may have died before the line above, and then no signal will come.
    if os.getppid() != supervisor:
        os._exit(1)


def _redirect_output(log: Path) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    # The descriptors themselves, so that what native code prints, such as NCCL's warnings, reaches the log too.
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
