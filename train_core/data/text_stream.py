"""The text of many files as one stream of pieces, so that a text larger than memory can be read. No torch."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from conf.errors import ConfigError
from conf.schema import DataSpec
from train_core.data.text_files import unreadable

PIECE_BYTES = 2**18
"""The bytes read at once. An encoding of that much text takes about 20 MB of memory."""


def pieces(data: DataSpec, paths: list[Path], piece_bytes: int = PIECE_BYTES) -> Iterator[str]:
    """The text of all files in order, up to `max_bytes`; a character that is cut in two at the end is dropped.

    Raises:
        ConfigError: a file cannot be read, or is not text.
    """
    assert data.max_bytes is not None
    left = data.max_bytes
    for path in paths:
        if left <= 0:
            return
        for piece in _pieces_of(data, path, left, piece_bytes):
            left -= len(piece.encode())
            yield piece


def _pieces_of(data: DataSpec, path: Path, max_bytes: int, piece_bytes: int) -> Iterator[str]:
    decoder, left = codecs.getincrementaldecoder("utf-8")(), max_bytes
    try:
        with path.open("rb", buffering=0) as file:
            while content := file.read(min(piece_bytes, left)):
                left -= len(content)
                yield _text(data, path, decoder.decode(content))
        # A character at the end of the file has to be whole, and one at the limit need not be.
        decoder.decode(b"", final=left > 0)
    except OSError as error:
        raise unreadable(data, OSError(error.errno, error.strerror, str(path))) from None
    except UnicodeDecodeError:
        raise _not_text(data, path) from None


def _text(data: DataSpec, path: Path, piece: str) -> str:
    if "\0" in piece:
        raise _not_text(data, path)
    return piece


def _not_text(data: DataSpec, path: Path) -> ConfigError:
    remedy = "Name UTF-8 text: one file, or a folder that holds nothing else."
    return ConfigError("data.path", data.path, f"is not text ({path} is binary or not UTF-8)", remedy)


def blocks(stream: Iterator[str], size: int = PIECE_BYTES) -> Iterator[str]:
    """The same text in blocks of whole lines, of `size` characters at most; a longer line is cut before a blank."""
    rest = ""
    for piece in stream:
        rest, start = rest + piece, 0
        while (stop := start + size) <= len(rest):
            # Before a blank, since an encoding takes it for the start of the next word.
            end = rest.rfind("\n", start, stop) + 1 or max(rest.rfind(" ", start + 1, stop), 0) or stop
            yield rest[start:end]
            start = end
        rest = rest[start:]
    if rest:
        yield rest
