"""One process at a time works in a folder: the lock that it, and all that it forked, hold until they have ended."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conf.errors import UsageError

PROBE_SECONDS = 1.0
"""Whoever holds a lock for less has only asked whether the trial runs."""

NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""The errors of a file system that knows no locks, such as Lustre mounted without `flock`, or NFS without lockd: nobody
is kept out there."""


@contextmanager
def hold_lock(lock: Path) -> Iterator[int]:
    """Hold an exclusive flock on `lock`. Forked ranks inherit it, so it is free only when the last of them has ended.

    Spawned ranks, those on GPUs, do not: where their supervisor is killed, the kernel ends them a moment after. What is
    yielded is the descriptor, for programs that are to inherit it.

    Raises:
        UsageError: another process holds it.
    """
    descriptor = _open_lock(lock)
    # Tried again for a while, because a status that asks whether a job runs takes the lock for a moment too.
    deadline = time.monotonic() + PROBE_SECONDS
    try:
        while True:
            try:
                _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    problem = f"Another process is running the trial in {lock.parent}"
                    raise UsageError(problem, "Wait for it, or end it first.") from None
                time.sleep(PROBE_SECONDS / 100)
        yield descriptor
    finally:
        # Closed and not unlocked: unlocking would take the lock from forked ranks that still run.
        os.close(descriptor)


@contextmanager
def wait_for_lock(lock: Path) -> Iterator[None]:
    """Hold an exclusive flock on `lock`, as soon as nobody else does."""
    descriptor = _open_lock(lock)
    try:
        _lock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open_lock(lock: Path) -> int:
    lock.parent.mkdir(parents=True, exist_ok=True)
    return os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)


def _lock(descriptor: int, operation: int) -> None:
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
