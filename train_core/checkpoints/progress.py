"""The progress of the thread that writes a checkpoint, for the training thread when it has to wait for it.

A save is its own work at some times, and waits for other ranks at others:

    plan ---|=== all plans ===|--- this rank's files ---|=== all files ===|--- rank 0 makes it a checkpoint ---

The training thread tells the rank's clock what of this it is held up by, as it does in all its waits. A rank whose disk
does not answer is thereby told from those that wait for it. Nothing is told while the training goes on meanwhile.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial

from train_core.measurement import DISK
from train_core.parallel.clock import Line, Operation

TOLD_BYTES = 2**24
"""So much that is written counts as a step forward. A disk that takes less within a watchdog's limit has failed."""


class Phase(Operation):
    """A part of a save. Its kind is all that there is to be said of it."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.kind


class Progress:
    """The present work of the writing thread. It writes, the training thread reads."""

    def __init__(self, world: Line) -> None:
        """`world` is the line of all ranks, whose clock is told of the waits."""
        self.clock = world.clock
        # Meetings count by a line of their own, because they run beside the collectives of the training.
        self._meetings = Line("checkpoint", world.ranks, world.clock)
        self._disk = Line(DISK, world.ranks, world.clock)
        self._changed = threading.Condition()
        self._now: Operation = Phase("", self._disk, 1, 0)
        self._untold_bytes = 0

    def work(self, kind: str) -> None:
        """From now on this rank works with files."""
        # Always a new object, by whose identity the waiting thread sees that something has come forward.
        self._go_on(Phase(kind, self._disk, 1, 0))

    def meet(self, kind: str) -> None:
        """This rank has done its part, and waits for the other ranks to do theirs."""
        self._go_on(Phase(*self._meetings.start(kind, 0)))

    def wrote(self, num_bytes: int) -> None:
        self._untold_bytes += num_bytes
        if self._untold_bytes >= TOLD_BYTES:
            self._untold_bytes = 0
            self.work(self._now.kind)

    def _go_on(self, now: Operation) -> None:
        with self._changed:
            self._now = now
            self._changed.notify_all()

    def wait(self, writing: Future[None]) -> None:
        """Wait until all is written. The clock is told anew whenever something has come forward."""
        # The writer may end without another word, and the training thread would then sleep on.
        writing.add_done_callback(lambda _: self._go_on(self._now))
        while not writing.done():
            now = self._now
            self.clock.wait(now, partial(self._wait_for_change, now, writing))

    def _wait_for_change(self, now: Operation, writing: Future[None]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._now is not now or writing.done())
