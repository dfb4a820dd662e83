"""The lines of a file or of standard input, as a terminal would show them, read once and in bounded memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from conf.errors import ConfigError
from conf.folders import at_home
from diagnose.runs import LogLine

KEY = "run"
STDIN = "-"
MOST_AT_ONCE, MOST_OF_A_FILE = 2**20, 64 * 2**20
"""Characters of one line that are held, and of a file that is read as a whole."""
MOST_SHOWN = 300
REWORKED = (b"\r", b"\x1b", b"[3", b"[0m")
"""What a line has in it of which a terminal shows something else."""
PACKED: dict[bytes, Callable[[BinaryIO], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
"""How files begin that gzip, bzip2 and xz have compressed, and what unpacks them."""
COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
BARE_COLOURS = re.compile(r"\[(?:0|1|[349]\d)(?:;\d+)*m")
"""Codes of colours that lost their escape sign on the way through a web page."""
SPEAKERS = re.compile(
    r"\s*(?:\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?[ |-]+|\d\d/\d\d/\d{4} [\d:]+ |\[\w[\w.-]*\d+\]:"
    r"|\[[^\[\]\s=]*:\d+\]:?|\(\w+ pid=\d+[^)]*\)|\[(?:rank|default|trainer|titan|INFO|WARNING|DEBUG)[^\]]*\]:?"
    r"|\[\w+\.py:\d+:\w+\]"
    r"|\[\d{4}-[^\]]*\]|\d{1,5}: |\[\d{1,5}\]:? |[\w.-]+: (?=\[|\d{4}-)|(?:root|INFO|titan|\w*logger) - )\s*"
)
"""What launchers, loggers and schedulers write in front of what a program printed."""
RANKS = re.compile(
    r"^(?:\[rank(\d+)\]|\[default(\d+)\]|\[trainer(\d+)\|\d+\]|(\d{1,5}): |\[Rank (\d+)\])", re.IGNORECASE
)


def lines_of(source: str, is_dull: Callable[[bytes], bool] = lambda raw: False) -> Iterator[tuple[int, str]]:
    """Every line with its number from 1; what a carriage return would overwrite is a line with the same number.

    Args:
        is_dull: true of the bytes of a line that nobody needs, as most of a long log is; the first line always comes.

    Raises:
        ConfigError: the source cannot be read, is empty, or is not a text.
    """
    with _opened(source) as (binary, opening):
        if not opening.strip():
            raise ConfigError(KEY, source, "is empty", "Name the log, script or configuration of a run.")
        encoding = _encoding(source, opening)
        number, held = 1, ""
        for raw in _raw_lines(binary, encoding):
            is_whole = raw.endswith(b"\n")
            if is_dull(raw) and not held and number > 1 and is_whole:
                pass
            elif is_whole and not held and number > 1 and not any(map(raw.__contains__, REWORKED)):  # as most lines are
                if len(text := raw.decode("utf-8", "replace")) > 1:
                    yield number, text[:-1]
            else:
                *lines, held = _lines(held + raw.decode("utf-8", "replace"), is_whole)
                yield from ((number, line) for line in lines)
            number += is_whole
        if held:
            yield number, held


def _raw_lines(binary: BinaryIO, encoding: str) -> Iterator[bytes]:
    """The lines in UTF-8, those without an end in pieces."""
    if encoding.startswith("utf-16"):
        text = io.TextIOWrapper(binary, encoding, errors="replace", newline="\n")
        yield from (line.encode() for line in iter(partial(text.readline, MOST_AT_ONCE), ""))
        text.detach()
    else:
        yield from iter(partial(binary.readline, MOST_AT_ONCE), b"")


def _lines(text: str, is_whole: bool) -> Iterator[str]:
    """What a line shows, one after the other, and at last what its next piece goes on."""
    if "\x1b" in text:
        text = COLOURS.sub("", text)
    if "[3" in text or "[0m" in text:
        text = BARE_COLOURS.sub("", text)
    *parts, rest = text.rstrip("\r\n").lstrip("\ufeff").split("\r") if is_whole else text.split("\r")
    yield from filter(None, [*parts, rest] if is_whole else parts)
    yield "" if is_whole else rest[-MOST_AT_ONCE:]


@contextmanager
def _opened(source: str) -> Iterator[tuple[BinaryIO, bytes]]:
    """The bytes of a source, and its first ones, which stay to be read."""
    if source == STDIN:
        yield sys.stdin.buffer, getattr(sys.stdin.buffer, "peek", lambda _: b"x")(4096)
        return
    path = at_home(source, KEY)
    if path.is_dir():
        raise ConfigError(KEY, source, "is a folder", "Name the files in it that belong to the run.")
    try:
        with path.open("rb") as binary:
            unpack = next((opens for sign, opens in PACKED.items() if binary.peek(8).startswith(sign)), None)
            if unpack is None:
                yield binary, binary.peek(4096)
                return
            with io.BufferedReader(unpack(binary)) as unpacked:
                yield unpacked, unpacked.peek(4096)[:4096]
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        problem = f"is compressed, and damaged or cut ({error})"
        raise ConfigError(KEY, source, problem, "Unpack what can be unpacked, and name that file.") from None
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
        raise ConfigError(KEY, source, problem, "Name a file that you may read, or - for standard input.") from None


def _encoding(source: str, opening: bytes) -> str:
    if opening.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if opening.startswith(tuple(PACKED)):
        raise ConfigError(KEY, source, "is compressed", "Unpack it first: gunzip -c FILE | trisweep diagnose -")
    if ".tfevents." in source or b"brain.Event:" in opening:
        remedy = "Export its scalars as CSV from TensorBoard, or name the log that the program printed."
        raise ConfigError(KEY, source, "is a file of TensorBoard's events, which is not read", remedy)
    zeros = [place for place, sign in enumerate(opening) if sign == 0]
    if len(zeros) > len(opening) // 3 and len({place % 2 for place in zeros}) == 1:
        return "utf-16-le" if zeros[0] % 2 else "utf-16-be"
    if zeros:
        raise ConfigError(KEY, source, "is not a text", "Name a log, script or configuration of a run.")
    return "utf-8-sig"


def whole_text(source: str) -> str:
    """A configuration file's text, with the line ends that it has.

    Raises:
        ConfigError: as `lines_of`, or it is far too long for a configuration.
    """
    with _opened(source) as (binary, opening):
        encoding = _encoding(source, opening)
        raw = binary.read(MOST_OF_A_FILE + 1)
    if len(raw) > MOST_OF_A_FILE:
        problem = f"is longer than {MOST_OF_A_FILE // 2**20} MiB, and no log by its name"
        raise ConfigError(KEY, source, problem, "Name a log *.log, or give the configuration alone.")
    return raw.decode(encoding, "replace")


def text_beside(source: str, name: str) -> str | None:
    """The text of a small file that another one names, where it lies beside that one or below it; None where not."""
    folder = at_home(source, KEY).parent
    parts = [part for part in Path(name).parts if "$" not in part and part not in ("/", "..", ".")]
    for path in (folder.joinpath(*parts[place:]) for place in range(len(parts))):
        try:
            if path.is_file() and path.stat().st_size <= MOST_AT_ONCE:
                return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
    return None


def name_of(source: str) -> str:
    return "standard input" if source == STDIN else Path(source).name


def at(source: str, number: int | None, text: str = "") -> LogLine:
    """The line as it is shown: without what would make a message endless."""
    return LogLine(source, number, text.strip()[:MOST_SHOWN])


def without_speaker(text: str) -> str:
    """The line as the program printed it."""
    while match := SPEAKERS.match(text):
        if not match[0]:
            break
        text = text[match.end() :]
    return text


def rank_of(text: str) -> int | None:
    """The rank that a line's prefix names."""
    match = RANKS.match(text.lstrip())
    return int(next(filter(None, match.groups()))) if match else None
