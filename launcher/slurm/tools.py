"""Slurm's tools, asked once each and never for long."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import NamedTuple

ANSWER_SECONDS = 15


class ToolResult(NamedTuple):
    """The output of a tool, and whether it succeeded.

    Attributes:
        ok: it ran, and ended well.
    """

    ok: bool
    stdout: str
    stderr: str

    @property
    def complaint(self) -> str:
        return " ".join((self.stderr or self.stdout).split())


def ask(*command: str, stdin: str | None = None) -> ToolResult:
    """Run a tool; one that is absent or hangs has not answered well."""
    if not shutil.which(command[0]):
        return ToolResult(False, "", f"there is no {command[0]} on the PATH")
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return ToolResult(False, "", f"{command[0]} did not answer within {ANSWER_SECONDS} s")
    return ToolResult(done.returncode == 0, done.stdout, done.stderr)


def pairs_of_lines(text: str) -> dict[str, str]:
    """Parse the output of `scontrol show config`: a `Name = value` on each line."""
    return {name: value.strip() for name, value in re.findall(r"^(\S+)\s*= ?(.*)$", text, re.MULTILINE)}


def pairs_of_words(line: str) -> dict[str, str]:
    """Parse the output of `scontrol -o show partition`: `Name=value` words."""
    return dict(re.findall(r"(?<!\S)([^\s=]+)=(\S*)", line))


def minutes(text: str) -> float | None:
    """Slurm's way to write a duration: `30`, `30:00`, `1:30:00`, `2-12:00:00`; None where it sets no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        return None
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    # With days, or with all three parts, the first is hours; otherwise it is minutes.
    if days is not None or len(numbers) == 3:
        hours, mins, seconds = [*numbers, 0, 0][:3]
    else:
        hours, (mins, seconds) = 0, [*numbers, 0][:2]
    return int(days or 0) * 24 * 60 + hours * 60 + mins + seconds / 60
