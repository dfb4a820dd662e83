"""Other people's tools, such as those of Slurm and of the drivers, run for their answer."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import NamedTuple

ANSWER_SECONDS = 20
"""As long as a busy controller may take, or a driver that wakes its devices. A broken one hangs."""

MANY_JOBS_SECONDS = 60
"""As long as Slurm or PBS may take to look at, or end, some hundred jobs."""

IDS_PER_CALL = 500
"""A sweep may have thousands of jobs. So many ids or names at a time stay far below the longest command line."""

TOOLS_OF_SLURM = frozenset({"squeue", "sacct", "sinfo", "scontrol", "scancel"})
FILTERS = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")
"""So begin variables by which people shape what Slurm's tools show them: jobs of ours would be missing from it."""

FORMS = {"SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}
"""Times in full, and lists of an array's elements of any length."""


class ToolResult(NamedTuple):
    """The output of a tool.

    Attributes:
        exit_code: None where it is absent, cannot be run or did not answer in time; `stderr` says which.
    """

    exit_code: int | None
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def complaint(self) -> str:
        return " ".join((self.stderr or self.stdout).split())


def ask(*command: str, stdin: str | None = None, seconds: float | None = ANSWER_SECONDS) -> ToolResult:
    """Run a tool; one that is absent or hangs has not answered well.

    Args:
        seconds: after which it is ended; None for what would be half done then, such as a submission.
    """
    if not shutil.which(command[0]):
        return ToolResult(None, "", f"there is no {command[0]} on the PATH")
    try:
        given = None if stdin is None else stdin.encode()
        environment = _environment_of_slurm() if command[0] in TOOLS_OF_SLURM else None
        done = subprocess.run(command, input=given, capture_output=True, timeout=seconds, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return ToolResult(None, "", f"{command[0]} did not answer within {seconds} s")
    except OSError as error:
        return ToolResult(None, "", str(error))
    # Not as text: a patch has to keep the line ends of its files.
    return ToolResult(done.returncode, *(said.decode(errors="replace") for said in (done.stdout, done.stderr)))


def in_calls(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield as many ids, or names, at a time as one call takes."""
    yield from (ids[first : first + IDS_PER_CALL] for first in range(0, len(ids), IDS_PER_CALL))


def _environment_of_slurm() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(FILTERS)} | FORMS
