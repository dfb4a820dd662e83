"""Who may read what the commands and their jobs write."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conf.errors import UsageError

OTHERS = 0o077  # all permissions of everybody but the owner
_of_the_user: list[int] = []
"""The permissions that new files lacked when this process began."""

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def keep_private() -> None:
    """From now on nobody but the user may read or write what this process and its children create.

    An output folder holds programs that run as the user, so that whoever can write there can act as the user. To
    share a folder, change its mode: files and folders that exist keep the mode that they have.
    """
    began_with = os.umask(OTHERS)
    _of_the_user.append(began_with)


@contextmanager
def shared_as_usual() -> Iterator[None]:
    """What is made inside is for others to have, such as an export, and gets the permissions that the user gives."""
    before = os.umask(_of_the_user[0] if _of_the_user else OTHERS)
    if not _of_the_user:
        os.umask(before)
    try:
        yield
    finally:
        os.umask(before)


def read_own(path: Path) -> bytes:
    """The content of a file that runs as a program: nobody but its owner, who runs it, can have written it.

    Raises:
        UsageError: it, or the folder that it is in, is another's, or others may write there.
    """
    with path.open("rb") as file:
        for what, status in ((path, os.fstat(file.fileno())), (path.parent, path.parent.stat())):
            if status.st_uid not in (os.geteuid(), 0):
                raise UsageError(f"{what} belongs to user {status.st_uid}, and not to you", "Submit the job yourself.")
            if status.st_mode & WRITABLE_BY_OTHERS:
                mode = stat.S_IMODE(status.st_mode)
                problem = f"others may write {what} (mode {mode:03o}), which this job would run as you"
                raise UsageError(problem, f"Look at what is there, then: chmod go-w {what}")
        return file.read()
