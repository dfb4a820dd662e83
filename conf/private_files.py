"""The permissions of the files that commands and their jobs write."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
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
    """Let nobody but the user read or write what this process and its children create from now on.

    An output folder holds programs that run as the user, so that whoever can write there can act as the user. To
    share a folder, let others read it: files and folders that exist keep the mode that they have.
    """
    began_with = os.umask(OTHERS)
    _of_the_user.append(began_with)


@contextmanager
def shared_as_usual() -> Iterator[None]:
    """Give files that are made inside the user's usual permissions, because they are for others, such as an export."""
    before = os.umask(_of_the_user[0] if _of_the_user else OTHERS)
    if not _of_the_user:
        os.umask(before)
    try:
        yield
    finally:
        os.umask(before)


def require_own_folders(path: Path) -> None:
    """Refuse a folder that somebody else could put another one in the place of: jobs run what lies in it as the user.

    Of it and all folders above, the owner has to be the user or root, and nobody else may write there, as sshd asks of
    the folders above its keys (StrictModes). In a folder with the sticky bit others may write, and rename nothing.
    Raises UsageError, which names the first folder that is not so, and what to do.
    """
    folder = path.resolve()
    elsewhere = "or choose a folder that only you may write to with output_dir=PATH"
    for above in (folder, *folder.parents):
        status = above.stat()
        if status.st_uid not in (os.geteuid(), 0):
            problem = f"{above} belongs to user {status.st_uid}, who could replace what jobs would run as you"
            raise UsageError(problem, f"Have its owner give it to you (chown), {elsewhere}.")
        others_write = status.st_mode & (stat.S_IWOTH if _is_alone_in(status.st_gid) else WRITABLE_BY_OTHERS)
        if others_write and not status.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(status.st_mode)
            problem = f"Others may write to {above} (mode {mode:03o}), and so could replace what jobs run as you"
            raise UsageError(problem, f"Check what it holds, then `chmod go-w {shlex.quote(str(above))}`, {elsewhere}.")


def unreadable(path: Path, error: OSError) -> UsageError:
    """Return the error of what is there and may not be read: it says whose it is, and what to do."""
    blocked = existing_part(path)
    owner = owner_of(blocked)
    give = f"`chmod -R {'g' if owner else 'u'}+rX {shlex.quote(str(blocked))}`"
    whose = f": {'it' if blocked == path else blocked} belongs to {owner}" if owner else ""
    remedy = f"Have {owner} give {give}" if owner else f"Give {give}"
    problem = f"{path} cannot be read ({error.strerror}){whose}"
    return UsageError(problem, f"{remedy}; until then, nothing can be said or done.")


def existing_part(path: Path) -> Path:
    """The file or folder itself, or the folder above it that is nearest and there, as far as this user may see."""
    return next(place for place in (path, *path.absolute().parents) if _uid_of(place) is not None)


def owner_of(path: Path) -> str | None:
    """The name of another user to whom the file or folder belongs; None where it is the user's own, or is not there."""
    uid = _uid_of(path)
    if uid is None or uid == os.geteuid():
        return None
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _uid_of(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


def _is_alone_in(group: int) -> bool:
    """True if the group is the user's own, which many systems give each user, so that it lets in nobody else."""
    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return entry.gr_name == user.pw_name and set(entry.gr_mem) <= {user.pw_name}


def read_own(path: Path) -> bytes:
    """The content of a file that runs as a program: nobody but its owner, who runs it, can have written it.

    Raises UsageError where it, or the folder that it is in, is another's, or others may write there.
    """
    with path.open("rb") as file:
        for what, status in ((path, os.fstat(file.fileno())), (path.parent, path.parent.stat())):
            if status.st_uid not in (os.geteuid(), 0):
                raise UsageError(f"{what} belongs to user {status.st_uid}, and not to you", "Submit the job yourself.")
            if status.st_mode & WRITABLE_BY_OTHERS:
                mode = stat.S_IMODE(status.st_mode)
                problem = f"Others may write to {what} (mode {mode:03o}), and this job would run it as you"
                raise UsageError(problem, f"Check what it holds, then `chmod go-w {shlex.quote(str(what))}`.")
        return file.read()
