"""One process at a time carries a sweep out, and one at a time calibrates a cluster."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from conf.errors import FULL_ERRORS, ConfigError, UsageError
from conf.private_files import owner_of
from train_core.trial.atomic import write_atomically
from train_core.trial.folder import is_held

PROBE_BYTES = 2**20
"""About what a sweep's first files take: a full disk or an exhausted quota may still accept an empty file."""


class Lockable(Protocol):
    """A folder in which one process works at a time, and the file that this process locks."""

    @property
    def path(self) -> Path: ...

    @property
    def lock(self) -> Path: ...


class Holder(NamedTuple):
    pid: int
    hostname: str

    @property
    def is_here(self) -> bool:
        return self.hostname == socket.gethostname()

    def __str__(self) -> str:
        # A process that holds the lock since a moment may not have written its id yet.
        return f"process {self.pid} on {self.hostname}" if self.pid else "another process"


@contextlib.contextmanager
def lock_folder(folder: Lockable) -> Iterator[None]:
    """Hold the folder, which is made if need be; the system lets it go when this process ends, however it ends.

    Raises:
        UsageError: another process holds it; names that process.
        ConfigError: the folder cannot be written, or its disk is full.
    """
    descriptor = _open_lock(folder)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use_error(folder) from None
        except OSError as error:
            problem = (
                f"is on a file system without locks ({error.strerror}), so that two commands could run a trial twice"
            )
            remedy = "Choose another folder with output_dir=PATH, or have it mounted with locks (Lustre: -o flock)."
            raise ConfigError("output_dir", str(folder.path.parent), problem, remedy) from None
        # The content is only for people and for `cancel`; the lock itself is the kernel's.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        # The file stays: if it were removed, two processes could lock two different files of the same name.
        os.close(descriptor)


def holder(folder: Lockable) -> Holder | None:
    """The process that holds the folder now; None where nobody does."""
    if not is_held(folder.lock):
        return None
    pid, _, hostname = folder.lock.read_text().strip().partition(" ")
    return Holder(int(pid or 0), hostname)


def wait_until_free(folder: Lockable, seconds: float) -> None:
    """Wait for whoever holds the folder, for so long at most."""
    deadline = time.monotonic() + seconds
    while holder(folder) is not None and time.monotonic() < deadline:
        time.sleep(1.0)


def _open_lock(folder: Lockable) -> int:
    """Open the lock file, once the folder has proved that it takes a file with content."""
    probe = folder.path / ".writable"
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        write_atomically(probe, "x" * PROBE_BYTES)
        probe.unlink(missing_ok=True)  # another command at the same instant removes what both have written
        # With O_CLOEXEC, a job that outlives this process does not inherit the lock and go on holding it.
        return os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _not_writable(error, folder.path) from None


def require_writable(folder: Path) -> None:
    """Raises ConfigError for a folder that a command could not write; nothing is left there."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        tempfile.TemporaryDirectory(dir=there, prefix=".writable-").cleanup()
    except OSError as error:
        raise _not_writable(error, folder) from None


def _not_writable(error: OSError, folder: Path) -> ConfigError:
    problem = f"cannot be written ({error.strerror})"
    return ConfigError("output_dir", str(folder.parent), problem, _remedy_of(error, folder))


def _remedy_of(error: OSError, path: Path) -> str:
    if error.errno in FULL_ERRORS:
        return "Free space there, and give the same command again, or choose another with output_dir=PATH."
    if isinstance(error, PermissionError) and (owner := owner_of(path)):
        return f"{path.name} belongs to {owner}: have {owner} go on with it, or choose another with output_dir=PATH."
    return "Choose another with output_dir=PATH."


def _in_use_error(folder: Lockable) -> UsageError:
    who = holder(folder) or "another process"  # it may have ended just now
    problem = f"{folder.path} is in use by {who}"
    return UsageError(problem, "Wait for it to end, or end it with `trisweep cancel` or Ctrl-C there.")
