"""Answers of Slurm's commands, kept on disk for a moment, so that commands which look at once ask slurmctld once.

A slurmctld that answers slowly or with errors is asked the more rarely by those commands of this user on this machine
that take an older answer (`patience`). A step of a sweep takes none, and always asks.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from conf.types.schema import Frozen
from launcher.external_commands import ANSWER_SECONDS, ask
from train_core.whole_files import write_atomically

SLOW_FACTOR = 10.0
"""An answer that took a second is not asked for again for ten seconds, by those who may take an older one."""

MOST_SECONDS = 60.0
"""No answer is kept for longer, and slurmctld is left unasked for no longer."""

MOST_DOUBLINGS = 10
"""Of the wait for a tool that fails, which is at its longest by then."""


FORGOTTEN_SECONDS = 3600.0


class CommandAnswer(Frozen):
    """The answer of one command of Slurm's, kept so that the next command need not ask again.

    Attributes:
        asked: when it was asked, in seconds since the epoch.
        took: seconds until it had answered.
        exit_code: None where there is no such command, or where it did not answer in time.
    """

    asked: float
    took: float
    exit_code: int | None
    said: str
    complained: str
    failures: Annotated[int, Field(ge=0)] = 0

    @property
    def has_failed(self) -> bool:
        return self.exit_code != 0

    @property
    def age(self) -> float:
        """Seconds since it was given; infinite where the clock has been set back meanwhile."""
        age = time.time() - self.asked
        return age if age >= 0 else float("inf")

    def is_good_for(self, patience: float) -> bool:
        """True if it is fresh enough for whoever takes one of that age in seconds, or Slurm is to be left in peace."""
        if not patience:
            return False
        # A tool that fails is left alone twice as long each time, and a slow one in proportion to what an answer cost.
        doublings = min(self.failures, MOST_DOUBLINGS)
        wanted = patience * 2**doublings if self.has_failed else max(patience, SLOW_FACTOR * self.took)
        return self.age < min(wanted, MOST_SECONDS)


FRESH = 0.0
"""The age of a stored answer, in seconds, that is good enough for those who always ask."""
WATCHING = 30.0
"""Of those who look again and again: sites ask that squeue is not called in a loop; folders may be read at any time."""


def answer_of(command: Sequence[str], patience: float, seconds: float = ANSWER_SECONDS) -> CommandAnswer:
    """Return the command's answer: a stored one if it is fresh enough, else a new one.

    Args:
        patience: how old it may be, in seconds.
        seconds: after which a new one is not waited for any longer.
    """
    kept = _stored_answer(command)
    if kept is not None and kept.is_good_for(patience):
        return kept
    began, started = time.time(), time.monotonic()
    exit_code, said, complained = ask(*command, seconds=seconds)
    took = time.monotonic() - started
    answer = CommandAnswer(asked=began, took=took, exit_code=exit_code, said=said, complained=complained)
    if answer.has_failed and kept is not None and kept.has_failed:
        answer = answer.model_copy(update={"failures": kept.failures + 1})
    if patience:  # who asks once keeps nothing, so that only questions that come again are kept
        _store(command, answer)
    return answer


def _stored_answer(command: Sequence[str]) -> CommandAnswer | None:
    folder = _folder()
    try:
        return CommandAnswer.model_validate_json(_file(folder, command).read_bytes()) if folder else None
    except (OSError, ValidationError):
        return None


def _store(command: Sequence[str], answer: CommandAnswer) -> None:
    if folder := _folder():
        with contextlib.suppress(OSError):  # it only saves a question
            write_atomically(_file(folder, command), answer.model_dump_json(), durable=False)
            # A sweep that goes on asks about other jobs, and nobody asks the old question again.
            for path in folder.iterdir():
                if time.time() - path.stat().st_mtime > FORGOTTEN_SECONDS:
                    path.unlink(missing_ok=True)


def forget_answers() -> None:
    """Have everything asked anew: what Slurm said before its jobs were cancelled is not how they stand."""
    if folder := _folder():
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                path.unlink()


def _file(folder: Path, command: Sequence[str]) -> Path:
    """Another cluster, or another stand-in for a tool, has answers of its own."""
    request = (os.environ.get("SLURM_CONF", ""), shutil.which(command[0]) or "", *command)
    return folder / hashlib.sha256("\0".join(request).encode()).hexdigest()[:24]


def _folder() -> Path | None:
    """A folder of this machine that nobody else can write to; None where there is none."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"trisweep-slurm-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        # Not stat, which would follow a link that somebody else has put there.
        status = folder.lstat()
    except OSError:
        return None
    # Whoever could write here could make a running job look as if it had ended.
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if private else None
