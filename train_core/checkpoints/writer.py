"""Writes this rank's boxes of a checkpoint, with a checksum of each, and tells how far it has come.

A save is its own work at some times, and waits for other ranks at others:

    plan ---|=== all plans ===|--- this rank's files ---|=== all files ===|--- rank 0 makes it a checkpoint ---

The training thread, when it has to wait for the one that writes, tells the rank's clock what of this it is held up by,
as it does in all its waits. A rank whose disk does not answer is thereby told from those that wait for it. Nothing is
told while the training goes on meanwhile.
"""

from __future__ import annotations

import concurrent.futures
import io
import threading
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageWriterTransforms
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from train_core.parallel.clock import Line, Operation
from train_core.trial.measurement import DISK

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

    def wait(self, writing: concurrent.futures.Future[None]) -> None:
        """Wait until all is written. The clock is told anew whenever something has come forward."""
        # The writer may end without another word, and the training thread would then sleep on.
        writing.add_done_callback(lambda _: self._go_on(self._now))
        while not writing.done():
            now = self._now
            self.clock.wait(now, partial(self._wait_for_change, now, writing))

    def _wait_for_change(self, now: Operation, writing: concurrent.futures.Future[None]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._now is not now or writing.done())


class Summed(io.RawIOBase):
    """Passes one item on to a file, and keeps the checksum of what has passed."""

    def __init__(self, file: IO[bytes], report: Callable[[int], None]) -> None:
        self.file, self.report = file, report
        self.crc32 = 0

    def write(self, content: Any) -> int:
        self.crc32 = zlib.crc32(content, self.crc32)
        written = self.file.write(content)
        self.report(written)
        return written


class Checksums(_StorageWriterTransforms):
    """Sees every item on its way into a file, where torch lets compressors in; changes nothing."""

    def __init__(self, report: Callable[[int], None]) -> None:
        super().__init__()
        self.report = report
        self.items: dict[MetadataIndex, Summed] = {}

    def transform_save_stream(self, write_item: WriteItem, raw_stream: io.IOBase) -> tuple[IO[bytes], list[str]]:
        item = Summed(cast("IO[bytes]", raw_stream), self.report)
        self.items[write_item.index] = item
        return cast("IO[bytes]", item), []


class Writer(FileSystemWriter):
    """Writes one checkpoint, and says how far it has come."""

    def __init__(self, draft: Path, progress: Progress) -> None:
        # Copies that a save needs have been made; a stream of the device would only hold the writer up.
        super().__init__(draft, per_thread_copy_ahead=0)
        self.progress = progress
        self.checksums = self.transforms = Checksums(progress.wrote)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        planned = super().prepare_local_plan(plan)
        # torch gathers the plans of all ranks next, so that from here on this rank only waits.
        self.progress.meet("the plan of a checkpoint")
        return planned

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self.progress.work("writing its share of a checkpoint")
        try:
            written = super().write_data(plan, planner).wait()
        except RuntimeError as error:
            # A disk that is full makes torch fail over and over, while it takes apart what it has begun to write.
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__
            raise cause or error from None
        finally:  # also where that has failed, which the others have still to be told
            self.progress.meet("the end of a checkpoint's files")
        for result in written:
            # An attribute that torch's own readers do not know and do not mind.
            result.storage_data.crc32 = self.checksums.items[result.index].crc32
        done: Future[list[WriteResult]] = Future()
        done.set_result(written)
        return done
