"""Writes this rank's boxes of a checkpoint, with a checksum of each."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageWriterTransforms
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from train_core.checkpoints.progress import Progress


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
            raise _system_error_behind(error) or error from None
        finally:  # also where that has failed, which the others have still to be told
            self.progress.meet("the end of a checkpoint's files")
        for result in written:
            # An attribute that torch's own readers do not know and do not mind.
            result.storage_data.crc32 = self.checksums.items[result.index].crc32
        done: Future[list[WriteResult]] = Future()
        done.set_result(written)
        return done


def _system_error_behind(error: BaseException | None) -> OSError | None:
    """The error of the system that led to this one."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error
