"""The life of one rank's process under a supervisor, which it tells of its steps and its end through a pipe. No torch
before the rank starts.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from train_core.job.failures import ended_by_failure
from train_core.measurement import Measurement, RankFailure, StepMetrics
from train_core.process.long_lived import importing_torch
from train_core.process.stop import StopAsked, Stopped, never
from train_core.trial_folder import TrialFolder

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
    tell = _one_at_a_time(sender)
    # A failure goes through the pipe too, because a full disk takes neither its file nor a line of the log.
    with ended_by_failure(trial, start.rank, tell=tell):
        _redirect_output(trial.rank_log(start.rank))
        if start.rank == 0:
            send_warnings(tell)
        tell(_run(trial, start, tell, stop_asked))


def _one_at_a_time(sender: Connection) -> Callable[[Message], None]:
    """Steps come from the thread that trains, and warnings from those that look for checkpoints and write them."""
    lock = threading.Lock()

    def tell(message: Message) -> None:
        with lock:
            sender.send(message)

    return tell


def _run(
    trial: TrialFolder, start: RankStart, tell: Callable[[Message], None], stop_asked: StopAsked
) -> Measurement | Stopped:
    with importing_torch():
        from train_core.job.rank import run_rank
        from train_core.process.world import Seat, file_rendezvous

    seat = Seat(start.rank, start.world_size, start.rank, file_rendezvous(start.meeting))
    kind, index = ("cpu", start.rank) if start.gpu is None else ("gpu", start.gpu)
    try:
        return run_rank(trial, seat, kind, index, tell, stop_asked)
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


LOGGERS = ("train_core.checkpoints.checkpoint", "train_core.checkpoints.checkpoint_folder")
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
