"""Whole lines of a log that is still being written."""

from __future__ import annotations

import re
from pathlib import Path

ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colours and cursor movements of terminals (ECMA-48, control sequences)."""

MOST_BYTES = 1 << 20
LINE_END = re.compile(rb"\r\n|\n|\r")  # progress bars rewrite their line after a carriage return


class LogTail:
    """Reads on from where it stopped. A line without an end waits until it has one."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset, self._rest = path, 0, b""

    def lines(self) -> list[str]:
        """The lines that were completed since the last call, without colours."""
        *whole, self._rest = LINE_END.split(self._rest + self._more())
        return [_plain(line) for line in whole]

    def last_words(self) -> list[str]:
        """What follows the last line's end: to be asked for when nobody writes any more."""
        rest, self._rest = self._rest, b""
        return [_plain(rest)] if rest else []

    def _more(self) -> bytes:
        read = []
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                while chunk := file.read(MOST_BYTES):
                    read.append(chunk)
                self._offset = file.tell()
        except OSError:  # not there yet, or a network file system that is away for a moment
            return b""
        return b"".join(read)


def _plain(line: bytes) -> str:
    return ESCAPES.sub("", line.decode(errors="replace"))
