"""The files of a text: every file of a folder in the order of their paths, but for what is hidden. No torch.

Links are followed after the folder itself has been read through, so that a folder which several names lead to is read
once, by its own name if it has one here, and a link that leads back ends the search.
"""

from __future__ import annotations

import codecs
import os
import sysconfig
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from conf.errors import ConfigError
from conf.nearest import listed
from conf.types.schema import DataSpec

MOST_NAMED = 3
HIDDEN, DANGLING, SPECIAL, AGAIN = (
    "hidden",
    "links that lead nowhere",
    "neither files nor folders",
    "links to folders that are read already or lie above",
)


@dataclass
class TextFiles:
    """The files that a search has found.

    Attributes:
        left_out: by reason, the paths below `data.path` that are not read.
    """

    paths: list[Path] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def num_bytes(self) -> int:
        """The bytes of all files, read or not; those that have vanished meanwhile count nothing."""
        return sum(path.stat().st_size for path in self.paths if path.exists())

    def leave_out(self, reason: str, name: str) -> None:
        self.left_out.setdefault(reason, []).append(name)

    def what_is_left_out(self) -> str:
        """In words, such as `hidden: .git, .cache`; empty where all is read."""
        return "; ".join(f"{reason}: {listed(sorted(names), MOST_NAMED)}" for reason, names in self.left_out.items())


def text_files(data: DataSpec) -> TextFiles:
    """The files of a text in order; raises ConfigError where the path does not exist, or a folder cannot be read."""
    # Without a path the text is Python's own library, which every machine that runs this has.
    if data.path is None:
        return TextFiles(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
    path = Path(data.path).expanduser()
    try:
        if path.is_file():
            return TextFiles([path])
        if path.is_dir():
            return _FolderWalk(path).files()
    except OSError as error:
        raise unreadable(data, error) from None
    problem = "does not exist"
    if path.exists():
        problem = "is neither a file nor a folder"
    elif path.is_symlink():
        problem = "is a link that leads nowhere"
    raise ConfigError("data.path", data.path, problem, "Name a text file or a folder of text files.")


def unreadable(data: DataSpec, error: OSError) -> ConfigError:
    problem = f"cannot be read ({error.filename}: {error.strerror})"
    return ConfigError("data.path", data.path, problem, "Make it readable, or name another.")


class _FolderWalk:
    """One walk through a folder, and then through the folders that links in it lead to."""

    def __init__(self, top: Path) -> None:
        self.top, self.found = top, TextFiles()
        self.walked: set[tuple[int, int]] = set()
        self.links: list[Path] = []

    def files(self) -> TextFiles:
        self._walk(self.top)
        for link in self.links:  # grows meanwhile: what a link leads to may hold links
            if self.top.resolve().is_relative_to(link.resolve()) or _identity(link) in self.walked:
                self.found.leave_out(AGAIN, self._name(link))
            else:
                self._walk(link)
        self.found.paths.sort()
        return self.found

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.top))

    def _walk(self, folder: Path) -> None:
        for root, folders, names in os.walk(folder, onerror=_refuse):
            here = Path(root)
            if (identity := _identity(here)) in self.walked:  # below a link that leads above a folder that was walked
                folders.clear()
                continue
            self.walked.add(identity)
            # In place, which keeps os.walk out of them.
            folders[:] = sorted(name for name in self._names_to_read(here, folders))
            self.links += (path for name in folders if (path := here / name).is_symlink())
            for name in self._names_to_read(here, names):
                self._add(here / name)

    def _names_to_read(self, here: Path, names: list[str]) -> Iterator[str]:
        for name in names:
            if name.startswith("."):
                self.found.leave_out(HIDDEN, self._name(here / name))
            else:
                yield name

    def _add(self, path: Path) -> None:
        if path.is_file():
            self.found.paths.append(path)
        else:
            self.found.leave_out(DANGLING if path.is_symlink() else SPECIAL, self._name(path))


def _identity(folder: Path) -> tuple[int, int]:
    state = folder.stat()
    return state.st_dev, state.st_ino


def _refuse(error: OSError) -> None:
    """Make an error of what os.walk would pass over in silence."""
    raise error


PIECE_BYTES = 2**18
"""The bytes read at once. An encoding of that much text takes about 20 MB of memory."""


def pieces(data: DataSpec, paths: list[Path]) -> Iterator[str]:
    """The text of all files in order, up to `max_bytes`; a character that is cut in two at the end is dropped.

    Raises:
        ConfigError: a file cannot be read, or is not text.
    """
    assert data.max_bytes is not None
    left = data.max_bytes
    for path in paths:
        if left <= 0:
            return
        left = yield from _pieces_of(data, path, left)


def _pieces_of(data: DataSpec, path: Path, max_bytes: int) -> Generator[str, None, int]:
    """The text of one file; returns how many of `max_bytes` it leaves to those after it."""
    decoder, left = codecs.getincrementaldecoder("utf-8")(), max_bytes
    try:
        with path.open("rb", buffering=0) as file:
            while content := file.read(min(PIECE_BYTES, left)):
                left -= len(content)
                if "\0" in (piece := decoder.decode(content)):
                    raise _not_text(data, path)
                yield piece
        # A character at the end of the file has to be whole, and one at the limit need not be.
        decoder.decode(b"", final=left > 0)
    except OSError as error:
        raise unreadable(data, OSError(error.errno, error.strerror, str(path))) from None
    except UnicodeDecodeError:
        raise _not_text(data, path) from None
    return left


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
