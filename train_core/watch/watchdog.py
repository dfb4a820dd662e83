"""Ends a job in which a rank waits too long, and says for whom.

A thread of every rank looks at its clock. The first to find a wait beyond the limit raises an alarm in the trial
folder; every rank then writes where it stands, and from that the first one tells who is missing. Until there is an
alarm, all that the thread does is to look at a variable and at the folder, a few times within the limit.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

from train_core.process.world import World, use_device
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Fault, Outcome, RankFailure, Standing
from train_core.watch.hang import Hang, explain

LOOKS_PER_LIMIT = 8
"""A hang is noticed at most an eighth of the limit late, and looking costs next to nothing."""

LOOKS_BEFORE_VERDICT = 2
"""The rank that raised the alarm waits for this many looks, so that every rank has written where it stands."""

MORE_LOOKS_FOR_SILENT = 4
"""It waits for this many more while the rank that holds the others up has not written: on a busy machine that may be
late."""

MORE_LOOKS_OF_OTHERS = 3 + MORE_LOOKS_FOR_SILENT
"""The other ranks leave the verdict to the one that raised the alarm, and speak only if it does not come."""


@contextmanager
def watch_rank(trial: TrialFolder, world: World, hang_seconds: float) -> Iterator[None]:
    """While the block runs, a wait of this rank that is longer than `hang_seconds` ends the process."""
    if world.size == 1:  # a rank that is alone waits for nobody
        yield
        return
    watchdog = Watchdog(trial, world, hang_seconds)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.ended.set()
        watchdog.join()


class Watchdog(threading.Thread):
    """The thread that looks at a rank's clock."""

    def __init__(self, trial: TrialFolder, world: World, hang_seconds: float) -> None:
        # A daemon, so that the process can end whatever this thread is doing.
        super().__init__(name="watchdog", daemon=True)
        self.trial, self.world, self.hang_seconds = trial, world, hang_seconds
        self.rank, self.clock = world.rank, world.clock
        self.ended = threading.Event()
        self._trained_by = threading.get_ident()  # this object is made on the thread whose stack is wanted later
        self._num_waits, self._since = -1, time.monotonic()
        self._raised_alarm = False
        self._looks_left = LOOKS_BEFORE_VERDICT + MORE_LOOKS_OF_OTHERS

    def run(self) -> None:
        use_device(self.world.device)  # the clock asks for events of this device
        while not self.ended.wait(self.hang_seconds / LOOKS_PER_LIMIT):
            with contextlib.suppress(OSError):  # a full disk must not end the watch
                self._look()

    def _look(self) -> None:
        standing = self._current_standing()
        # Only waits can hang: how long a rank's own work may take, such as compiling, nobody knows.
        hangs = standing.operation is not None and standing.seconds > self.hang_seconds
        if hangs and self._raise_alarm():
            self._raised_alarm, self._looks_left = True, LOOKS_BEFORE_VERDICT
        if not hangs:
            self._looks_left = LOOKS_BEFORE_VERDICT + MORE_LOOKS_OF_OTHERS
        if not hangs and not self.trial.alarm.exists():
            return
        if hangs:
            with contextlib.suppress(OSError):  # nor keep the verdict away
                self.trial.write_standing(self._with_stack(standing))
            self._looks_left -= 1
            if self._looks_left < 0:
                self._end(standing, patient=self._looks_left >= -MORE_LOOKS_FOR_SILENT)
        elif self._raised_alarm:  # the wait has ended after all
            self.trial.alarm.unlink(missing_ok=True)
            self._raised_alarm = False
        else:
            self.trial.write_standing(self._with_stack(standing))

    def _raise_alarm(self) -> bool:
        """True for the rank that raises it. Where nobody can, each of those that wait ends by itself."""
        try:
            return self.trial.raise_alarm()
        except OSError:
            return False

    def _current_standing(self) -> Standing:
        now, waiting = time.monotonic(), self.clock.current_wait()
        # A rank that is at its own work has been since its last wait ended.
        # Waits too short to be seen are told by their number, so that a rank which makes progress is not taken for one
        # that stands.
        if self.clock.num_waits != self._num_waits:
            self._num_waits, self._since = self.clock.num_waits, now
        operation, since = waiting or (None, self._since)
        line = operation.line if operation else None
        return Standing(
            rank=self.rank,
            step=self.clock.step,
            micro_batch=self.clock.micro_batch,
            operation=str(operation) if operation else None,
            line=line.name if line else "",
            number=operation.number if operation and not operation.is_transfer else 0,
            ranks=tuple(line.ranks) if line else (),
            reached={other.name: other.num_started for other in self.clock.lines},
            seconds=now - since,
            stack="",
        )

    def _with_stack(self, standing: Standing) -> Standing:
        return standing.model_copy(update={"stack": stacks_of_work(self._trained_by)})

    def _end(self, standing: Standing, *, patient: bool) -> None:
        """Say why, and leave: collectives that hang cannot be left in an orderly way.

        Args:
            patient: give a rank that has not written where it stands more time.
        """
        must_wait = False
        try:
            # A rank that is alive writes at every look. What is older may be from before it stopped.
            not_before = self._time_of_standing() - self.hang_seconds / 2
            standing_of = cache(partial(self.trial.read_standing, not_before=not_before))
            hang = explain(standing, standing_of)
            must_wait = patient and hang.blamed is not None and standing_of(hang.blamed) is None
            if not must_wait:
                failure = self._failure(hang, standing_of)
                print(f"{failure.cause}\n{failure.traceback}", file=sys.stderr, flush=True)
                self.trial.write_failure(failure)
        finally:
            if not must_wait:  # whatever went wrong with the words, the job ends
                os._exit(1)

    def _time_of_standing(self) -> float:
        """The file system's time at which this rank last wrote where it stands; ours, where the disk takes nothing."""
        try:
            return self.trial.time_of_standing(self.rank)
        except OSError:
            return time.time()

    def _failure(self, hang: Hang, standing_of: Callable[[int], Standing | None]) -> RankFailure:
        told = [found for rank in (hang.blamed, self.rank) if rank is not None and (found := standing_of(rank))]
        return RankFailure(
            rank=self.rank,
            outcome=Outcome.FAILED,
            cause=hang.cause,
            traceback="".join(f"Rank {found.rank} stands here:\n{found.stack}" for found in told),
            time=time.time(),
            blamed=hang.blamed,
            fault=Fault.HANG,
            node=self.world.node_of(hang.blamed),
        )


WORK = ("/train_core/", "/torch/autograd/")
MAX_CALLS = 12
"""Of every thread but the training's own, whose whole stack is shown."""


def stacks_of_work(training: int) -> str:
    """The stack of the training thread, and of every other thread that is inside the trainer or torch's autograd.

    On a GPU backward passes run on threads of autograd's own, and the training thread only waits for them.

    Args:
        training: the identifier of the training thread.
    """
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stack = "".join(traceback.format_stack(frames.pop(training))) if training in frames else ""
    frames.pop(threading.get_ident(), None)  # whoever asks is a watchdog, which is always inside the trainer
    for ident, frame in frames.items():
        if any(part in call.f_code.co_filename for call, _ in traceback.walk_stack(frame) for part in WORK):
            calls = traceback.format_stack(frame)[-MAX_CALLS:]
            stack += f"Its thread {names.get(ident, 'of autograd')} stands here:\n{''.join(calls)}"
    return stack
