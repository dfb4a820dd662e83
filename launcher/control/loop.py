"""Step after step, until a sweep has ended or a signal comes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from conf.errors import UsageError
from launcher.control.conductor import Conductor
from launcher.control.rules import SweepStep
from launcher.control.workplace import ProgressDisplay, Unanswered
from sweeps.folder.journal import JournalReplacedError

NEWS_SECONDS = 0.2
"""How often the loop looks whether something has ended, where that costs next to nothing."""

RETRY_SECONDS = 30.0

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
"""The last is Slurm's warning before a job's time limit."""

PATIENCE_STEPS = 10
"""So many steps one after another may fail, as while Slurm restarts, before the loop gives up."""


def go_on(
    conductor: Conductor,
    progress: ProgressDisplay,
    poll_seconds: float,
    *,
    is_over: Callable[[SweepStep], bool] = lambda step: bool(step.finished),
) -> SweepStep:
    """Step after step until the sweep has ended, or the place where it runs; returns the last.

    Raises:
        KeyboardInterrupt: a signal came, and no step was cut short; its argument is the signal. What runs goes on.
        UsageError: the workplace refuses what it is given, or the sweep's folder was removed or replaced.
    """
    with catch_signals() as noted:
        while True:
            step = _advance_patiently(conductor, progress, noted)
            progress.show(step.readings)
            if is_over(step) or conductor.workplace.is_given_back():
                return step
            if noted.is_set():  # trials that end within every step leave no time to wait in
                raise KeyboardInterrupt(noted.number)
            until = time.monotonic() + poll_seconds
            # An end that is seen early frees its devices early; a whole step so often would read all folders again and
            # again.
            while time.monotonic() < until and not conductor.workplace.has_news():
                if noted.wait(min(NEWS_SECONDS, poll_seconds)):
                    raise KeyboardInterrupt(noted.number)


class ReceivedSignal(threading.Event):
    """Set once a signal has come; `number` is the signal."""

    number = 0


def _advance_patiently(conductor: Conductor, progress: ProgressDisplay, noted: ReceivedSignal) -> SweepStep:
    """One step; where it raises, as when Slurm does not answer to a submission, it is tried again for a while.

    Where only squeue does not answer, a step raises nothing, and concludes nothing (`launcher.slurm.reconcile`).
    """
    for _ in range(PATIENCE_STEPS - 1):
        try:
            return conductor.advance()
        except UsageError as error:
            # A command's first step that is refused is a wrong request, and trying again would only hide it. A folder
            # that was replaced belongs to another command, which has a controller of its own.
            may_pass = conductor.is_under_way or isinstance(error, Unanswered)
            if not may_pass or isinstance(error, JournalReplacedError):
                raise
            progress.say(f"A step failed, and is tried again: {error}")
        if noted.wait(RETRY_SECONDS):
            raise KeyboardInterrupt(noted.number)
    return conductor.advance()


@contextmanager
def catch_signals() -> Iterator[ReceivedSignal]:
    """Let signals only set a flag, so that none can come between starting a job and writing it down."""
    noted = ReceivedSignal()
    # Python allows only the main thread to set signal handlers.
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.number = number
        noted.set()

    heard = [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in heard}  # under nohup SIGHUP stays ignored
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
