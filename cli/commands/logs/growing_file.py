"""The part of a file that another process has written since the last look."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

CHUNK_BYTES = 2**20
"""A log may have gigabytes, and goes through memory in parts."""


class GrowingFile:
    """Reads on from where it stopped; from the start again where the file was replaced or cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode: int | None = None
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def news(self) -> Iterator[str]:
        """The text added since the last look, in parts; nothing where the file is not there."""
        try:
            with self.path.open("rb") as file:
                status = self.path.stat()
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                    self._decoder.reset()
                file.seek(self._offset)
                while chunk := file.read(CHUNK_BYTES):
                    self._offset += len(chunk)
                    yield self._decoder.decode(chunk)
        except OSError:  # not there yet, or just being replaced
            return
