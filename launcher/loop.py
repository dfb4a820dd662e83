"""Step after step, until a sweep has ended or a signal comes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from launcher.advance import Conductor, Step
from launcher.progress import Progress

NEWS_SECONDS = 0.2
"""How often the loop looks whether something has ended, where that costs next to nothing."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def go_on(conductor: Conductor, progress: Progress, poll_seconds: float) -> Step:
    """Step after step until the sweep has ended, or the place where it runs; returns the last.

    Raises:
        KeyboardInterrupt: a signal came, and no step was cut short. What runs goes on.
        UsageError: the workplace refuses what it is given.
    """
    with signals_noted() as stop:
        while True:
            step = conductor.advance()
            progress.show(step.readings)
            if step.finished or conductor.workplace.is_over():
                return step
            until = time.monotonic() + poll_seconds
            while not stop.is_set() and time.monotonic() < until and not conductor.workplace.has_news():
                stop.wait(min(NEWS_SECONDS, poll_seconds))
            if stop.is_set():
                raise KeyboardInterrupt


@contextmanager
def signals_noted() -> Iterator[threading.Event]:
    """Let signals only set a flag, so that none can come between starting a job and writing it down."""
    noted = threading.Event()
    # Python allows only the main thread to set signal handlers.
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.set()

    heard = [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in heard}  # under nohup SIGHUP stays ignored
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
