"""Logs, which may have gigabytes, may still grow, and may not be there yet: none is read as a whole."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

TAIL_BYTES = 65_536
"""Enough for the last traceback; a status reads the logs of a whole sweep."""

MOST_LINES = 40
"""So many lines stand in for the traceback of a process that left none."""

CHUNK_BYTES = 2**20

CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Colours and cursor movements of terminals (ECMA-48, control sequences), and other characters that nobody can see."""


def without_controls(text: str) -> str:
    """The text as it may stand in another terminal, a table or a page: lines and tabs stay."""
    return CONTROLS.sub("", text)


def tail(log: Path) -> str:
    """The end of a log, without colours; nothing where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return without_controls(file.read().decode(errors="replace"))
    except OSError:
        return ""


def last_lines(*logs: Path) -> str:
    """The last lines of the logs, one log after the other."""
    lines = [line for log in logs for line in tail(log).splitlines()]
    return "\n".join(lines[-MOST_LINES:])


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
        except OSError:  # not there yet, just being replaced, or a network file system that is away for a moment
            return
