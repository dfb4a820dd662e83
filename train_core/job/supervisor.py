"""Runs the ranks of a trial as processes of this machine. The first that fails is the cause and ends the others.

A rank's process tells its supervisor of its steps and its end through a pipe. No torch before a rank starts.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
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
from train_core.process.long_lived import importing_torch
from train_core.process.stop import StopAsked, Stopped, never
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Measurement, Outcome, RankFailure, StepMetrics

PR_SET_PDEATHSIG = 1  # from Linux' <sys/prctl.h>, which Python does not pass on
Message = StepMetrics | str | Measurement | Stopped | RankFailure
"""The pipe's messages: metrics of a step and warnings, from rank 0 alone, and from every rank how it ended."""


@dataclass(frozen=True)
class RankStart:
    """The arguments of a rank's process when it starts.

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


def rank_process(start: RankStart, sender: Connection, stop_asked: StopAsked) -> None:
    """Be a rank, from its start to its last message."""
    _die_with(start.supervisor)
    # Where a signal reaches all processes, such as Ctrl-C, the supervisor acts on it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL if stop_asked is never else signal.SIG_IGN)
    for number in (signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    trial = TrialFolder(start.folder)
    lock = threading.Lock()  # steps come from the thread that trains, and warnings from those that see to checkpoints

    def tell(message: Message) -> None:
        with lock:
            sender.send(message)

    # A failure goes through the pipe too, because a full disk takes neither its file nor a line of the log.
    with ended_by_failure(trial, start.rank, tell=tell):
        _redirect_output(trial.rank_log(start.rank))
        if start.rank == 0:
            send_warnings(tell)
        tell(_run(trial, start, tell, stop_asked))


def _run(
    trial: TrialFolder, start: RankStart, tell: Callable[[Message], None], stop_asked: StopAsked
) -> Measurement | Stopped:
    with importing_torch():
        from train_core.job.rank import run_rank
        from train_core.process.world import Seat, file_rendezvous

    seat = Seat(start.rank, start.world_size, start.rank, file_rendezvous(start.meeting))
    kind, index = ("cpu", start.rank) if start.gpu is None else ("gpu", start.gpu)
    try:
        measurement = run_rank(trial, seat, kind, index, tell, stop_asked)
    except Stopped as stopped:
        return stopped
    trial.finish_metrics()  # rank 0 alone has any
    return measurement


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


LOGGERS = ("train_core.checkpoints.checkpoint", "train_core.checkpoints.checkpoint_folder", "train_core.training.train")
"""The process that supervises warns of text and of weights itself, before a rank starts."""


def send_warnings(tell: Callable[[str], None]) -> None:
    """From now on these warnings of this process are told too, from whichever thread they come."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        # What writes to the log as long as there is no other handler: from here on there is one.
        if logging.lastResort is not None and not logger.hasHandlers():
            logger.addHandler(logging.lastResort)
        logger.addHandler(_Teller(tell))


class _Teller(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self.tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self.tell(record.getMessage())


@dataclass(frozen=True)
class Job:
    """The job to supervise.

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
    with _meeting_folder(job.trial) as meeting:
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


def _meeting_folder(trial: TrialFolder) -> tempfile.TemporaryDirectory[str]:
    """A folder on a local disk, which network file systems are too slow and too lax for.

    One that a killed supervisor of this trial left is deleted: the trial's lock is held, so that nobody meets there.
    """
    prefix = f"trisweep-{hashlib.sha256(os.fsencode(trial.path.resolve())).hexdigest()[:12]}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=prefix)


class Ranks:
    """The processes of one attempt. Each tells through a pipe how it ends, and rank 0 of each step."""

    def __init__(self, job: Job, meeting: Path) -> None:
        self.job, self.meeting = job, meeting
        self.measurement: Measurement | None = None
        self.stopped: Stopped | None = None
        # CUDA cannot be used in a forked process once its parent has initialized it.
        self._context = multiprocessing.get_context("fork" if job.gpus is None else "spawn")
        self._processes: list[BaseProcess] = []
        self._pipes = dict[int, Connection]()  # by rank, as long as something may come
        self._ended_well, self._told = set[int](), dict[int, RankFailure]()

    def start(self) -> None:
        """Start a process for each rank. On CPUs they are forked, so that torch is imported only once."""
        if self.job.gpus is None:
            with importing_torch():
                import train_core.job.rank  # noqa: F401

                if self.job.trial.read_experiment().parallel.recompute != "none":
                    import torch._dynamo  # noqa: F401  (recomputation needs it; here once, and not in every rank)
        self.job.trial.logs.mkdir(parents=True, exist_ok=True)
        # What is still buffered would be copied into every fork, and written once by each.
        sys.stdout.flush()
        sys.stderr.flush()
        job = self.job
        for rank in range(job.world_size):
            self._pipes[rank], sender = self._context.Pipe(duplex=False)
            gpu = None if job.gpus is None else job.gpus[rank]
            start = RankStart(job.trial.path, rank, job.world_size, self.meeting, gpu, os.getpid())
            arguments = (start, sender, job.stop_asked)
            process = self._context.Process(target=rank_process, args=arguments, name=f"rank-{rank}")  # type: ignore[attr-defined]
            process.start()
            sender.close()  # the rank alone holds it now, so that the pipe ends with the rank, even amid a message
            self._processes.append(process)

    def watch(self, deadline: float) -> Outcome:
        """Wait until all ranks have ended well, one has failed, or the deadline (monotonic seconds) has passed."""
        while True:
            # Asked once a round: a rank that died between two questions would count as neither failed nor running.
            exit_codes = [process.exitcode for process in self._processes]
            self._listen()  # after that question, as a rank says its last word just before it ends
            # One that ended with code 0 and without a last word has failed too, as after `os._exit(0)`.
            if any(code or (code == 0 and rank not in self._ended_well) for rank, code in enumerate(exit_codes)):
                return Outcome.FAILED
            running = [process for process, code in zip(self._processes, exit_codes, strict=True) if code is None]
            if not running:
                return Outcome.COMPLETED
            if (left := deadline - time.monotonic()) <= 0:
                return Outcome.TIMED_OUT
            self._wait(running, None if left == float("inf") else left)

    def _wait(self, running: Sequence[BaseProcess], seconds: float | None) -> None:
        wait([*(process.sentinel for process in running), *self._pipes.values()], seconds)

    def _listen(self) -> None:
        for rank, pipe in list(self._pipes.items()):
            try:
                while pipe.poll():
                    self._hear(rank, pipe.recv())
            except (EOFError, OSError):
                # A pipe at its end is always ready to be read, and waiting for it would turn a wait into a spin.
                self._pipes.pop(rank).close()

    def _hear(self, rank: int, message: Message) -> None:
        if isinstance(message, StepMetrics):
            if self.job.on_step is not None:
                self.job.on_step(message)
            return
        if isinstance(message, str):
            print(message, file=sys.stderr, flush=True)
            return
        if isinstance(message, RankFailure):
            self._told[rank] = message
            return
        self._ended_well.add(rank)
        if rank == 0:  # what the others say is the same
            self.measurement = message if isinstance(message, Measurement) else None
            self.stopped = message if isinstance(message, Stopped) else None

    def culprit(self, oom_kills_before: int) -> RankFailure:
        """The failure that came first. A rank that only lost its peer may be seen before the peer's own end."""
        deadline = time.monotonic() + CULPRIT_GRACE_SECONDS
        while True:
            running = [process for process in self._processes if process.exitcode is None]
            self._listen()
            failure = first_cause(self._failures(oom_kills_before))
            left = deadline - time.monotonic()
            if failure is not None and (not lost_a_peer(failure) or not running or left <= 0):
                return failure
            self._wait(running, max(0.0, left))

    def _failures(self, oom_kills_before: int) -> list[RankFailure]:
        # Both, because a watchdog writes alone, and a full disk takes no file.
        told = {failure.rank: failure for failure in self.job.trial.read_failures()} | self._told
        oom_kills = oom_kill_count() - oom_kills_before
        exit_codes = [process.exitcode for process in self._processes]
        silent = [
            silent_failure(rank, code, oom_kills, self.job.trial.rank_log(rank))
            for rank, code in enumerate(exit_codes)
            if code is not None and rank not in (told.keys() | self._ended_well)
        ]
        return [*told.values(), *silent]

    def end(self) -> None:
        """Kill the ranks that still run: an orderly end could hang, and nothing in a trial is worth that."""
        for process in self._processes:
            if process.exitcode is None:
                process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes.values():
            pipe.close()
