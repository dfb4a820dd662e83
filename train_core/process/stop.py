"""Asking a training to save and stop: a signal is noted, and acted on by all ranks after the step. No torch.

SIGUSR2 is Slurm's warning before the time limit, and asks to go on in another job. SIGTERM, and Ctrl-C on one machine,
ask for an end. A trial without checkpoints has nothing to save: it ends at once, and the warning is ignored.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import RawValue
from types import FrameType
from typing import NoReturn

from conf.plan.experiment import Experiment

Handler = Callable[[int, FrameType | None], object]
StopAsked = Callable[[], int]
"""The signal that asked, or 0. The largest of all ranks' answers counts: SIGTERM (15) goes before SIGUSR2 (12)."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
ONE_REQUEST_SECONDS = 0.5
"""Signals within this time are one request: `timeout` sends its own to the process and to the group that it is in."""


class Stopped(SystemExit):
    """Training was saved after `step` and ended because a signal asked for it; it goes on when it is run again.

    Attributes:
        num_steps: how many steps were done since the start or the restore.
    """

    def __init__(self, step: int, number: int, num_steps: int) -> None:
        super().__init__(128 + number)  # the exit code by which shells and Slurm know an end by this signal
        self.step, self.number, self.num_steps = step, number, num_steps

    def __reduce__(self) -> tuple[type[Stopped], tuple[int, int, int]]:
        # Rank 0 sends it to its supervisor; pickle would otherwise call the class with the exit code alone.
        return type(self), (self.step, self.number, self.num_steps)


def saves_when_stopped(experiment: Experiment) -> bool:
    return experiment.checkpoint.every_steps is not None


def never() -> int:
    return 0


class StopSwitch:
    """Shared between a supervisor, whose signals turn it, and the ranks that it starts, which look at it."""

    def __init__(self) -> None:
        # Without a lock, because a process that is killed while it holds one would leave the others waiting for it.
        self._number = RawValue(ctypes.c_int, 0)
        self._turned = 0.0

    def __call__(self) -> int:
        return self._number.value

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler of a rank that gets signals itself. SIGUSR2 after SIGTERM does not bring back what is to end."""
        self._number.value = max(self._number.value, number)

    def turn(self, number: int, frame: FrameType | None) -> None:
        """The handler of a supervisor. A second request means that nobody wants to wait for the step and the saving."""
        now = time.monotonic()
        if self._number.value and now - self._turned > ONE_REQUEST_SECONDS:
            raise SystemExit(128 + number)
        self._turned = self._turned or now
        self.note(number, frame)


def noted_signals(experiment: Experiment) -> StopAsked:
    """Have the signals that stop a training only noted from now on; returns what tells of them.

    Of a trial that saves nothing only the warning is kept away.
    """
    if not saves_when_stopped(experiment):
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        return never
    switch = StopSwitch()
    for number in STOP_SIGNALS:
        signal.signal(number, switch.note)
    return switch


@contextmanager
def cancelled_by_signals(switch: StopSwitch | None = None) -> Iterator[None]:
    """Turn SIGTERM into SystemExit and SIGINT into KeyboardInterrupt, and ignore SIGUSR2, whatever a launcher had set.

    Args:
        switch: is turned instead, by SIGUSR2 too, where ranks save and stop when they are asked to.
    """
    # Python lets only the main thread set handlers, and delivers signals only there.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Handler | signal.Handlers] = {
        signal.SIGTERM: _exit_on,
        signal.SIGINT: signal.default_int_handler,
        signal.SIGUSR2: signal.SIG_IGN,
    }
    if switch is not None:
        handlers = dict.fromkeys((*STOP_SIGNALS, signal.SIGINT), switch.turn)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_on(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
