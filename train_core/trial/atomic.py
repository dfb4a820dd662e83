"""Files that a reader finds whole or not at all, whatever ends the process or fills the disk meanwhile."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from stat import S_IMODE
from typing import Any, BinaryIO

from conf.errors import FULL_ERRORS

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
"""The errors of file systems without hard links."""

PATIENCE_SECONDS, PAUSE_SECONDS = 600.0, 2.0
"""So long a result waits for a full disk, and so long between two tries."""

ROOM_BYTES = 2**16
"""More than a result takes."""

NEXT_TO_NO_BYTES = 2**20
"""Trials that end on a full disk free a part of the room that was kept for each."""


@contextlib.contextmanager
def replacing(path: Path, *, keep_existing: bool = False, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write that takes `path`'s place when the block ends well: a reader never sees a part of it.

    A symbolic link stays, and the file behind it is replaced. A new file is private to the user; one that is there
    keeps who may read and write it.

    Args:
        keep_existing: a file that is there by then stays. The file system decides, whatever this machine has cached.
        durable: wait until the disk has it, because nothing else could tell it again after a power failure.
    """
    path = Path(os.path.realpath(path))  # unlike Path.resolve, takes a link to itself for a file to replace
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if path.exists():
            draft.chmod(S_IMODE(path.stat().st_mode))
        if keep_existing:
            _put_unless_there(draft, path)
        else:
            draft.replace(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a disk that is full does not say of which file
        raise


def _put_unless_there(draft: Path, path: Path) -> None:
    """Give the draft its name, or leave the file that has it; the file system decides between two that try at once."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # Without hard links two that try within the same instant may both find nothing there, and the later one stays.
        if not path.exists():
            draft.replace(path)
            return
    draft.unlink()


def write_atomically(path: Path, text: str, *, durable: bool = True) -> None:
    """Write `text` to `path` so that a reader sees the old file or the new one, never a part. See `replacing`."""
    with replacing(path, durable=durable) as file:
        file.write(text.encode())


def keep_room(path: Path) -> None:
    """Take the room and the inode that `path` will need, for `write_in_room`. A disk that is full now has none."""
    with contextlib.suppress(OSError):
        write_atomically(room_of(path), os.urandom(ROOM_BYTES).hex()[:ROOM_BYTES])  # which no file system compresses


def is_full(folder: Path) -> bool:
    """True if the disk has next to no room; one without inodes still takes more of the files that are there."""
    try:
        space = os.statvfs(folder)
    except OSError:  # it is gone
        return False
    return space.f_bavail * space.f_frsize < NEXT_TO_NO_BYTES


def room_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.room")


def write_in_room(path: Path, text: str, shown: str = "") -> None:
    """Write a result whole, into the room that was kept for it; without that, wait until the disk has room.

    Args:
        shown: is printed before the wait, which the job's time limit may end.

    Raises:
        OSError: it cannot be written, or the disk was full for `PATIENCE_SECONDS`.
    """
    when_not_full(lambda: _put_in_room(path, text), path, shown)


def _put_in_room(path: Path, text: str) -> None:
    try:
        file = room_of(path).open("r+b", buffering=0)
    except FileNotFoundError:
        write_atomically(path, text)
        return
    with file:
        file.truncate(file.write(text.encode()))
        os.fsync(file.fileno())
    room_of(path).replace(path)


def when_not_full(write: Callable[[], None], path: Path, shown: str = "") -> None:
    """Call `write`, and again while the disk is full, which is said once. See `write_in_room`."""
    until = time.monotonic() + PATIENCE_SECONDS
    is_told = False
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in FULL_ERRORS or time.monotonic() > until:
                raise
            if not is_told:
                is_told = True
                how = (
                    f"{path} cannot be written ({error.strerror}): tried again for {PATIENCE_SECONDS / 60:.0f} minutes"
                )
                with contextlib.suppress(OSError):  # the log may lie on the same disk
                    print(f"{how}\n{shown}".rstrip(), flush=True)
            time.sleep(PAUSE_SECONDS)


def stored_values(path: Path) -> dict[str, Any]:
    """The values of a file of JSON; empty where it is not there, damaged, or no mapping."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def append_whole(path: Path, text: str) -> None:
    """Append `text`, or nothing of it: half a line would spoil the one that comes after it. Raises OSError."""
    with path.open("ab", buffering=0) as file:
        before, left = file.seek(0, os.SEEK_END), memoryview(text.encode())
        try:
            while left:  # a nearly full disk takes a part first, and refuses the rest
                left = left[file.write(left) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(before)
            error.filename = str(path)
            raise
