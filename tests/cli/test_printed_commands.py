"""Every command that a sweep, its status and its report print is taken as it is printed."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Command

NOT_GIVEN = ("ui", "rerun")
"""A server, and what takes a trial's time and is tested by itself."""


def printed(text: str) -> list[str]:
    """The commands between backticks, and those on lines of their own."""
    flowing = re.findall(r"`(trisweep [^`]+)`", " ".join(text.split()))
    lines = [line.strip() for line in text.splitlines() if re.match(r" *trisweep \w", line)]
    return list(dict.fromkeys([*flowing, *lines]))


def require_taken(trisweep: Command, where: Path, texts: list[str]) -> list[str]:
    """Give each command once, a sweep's as a dry run; return them."""
    commands = list(dict.fromkeys(command for text in texts for command in printed(text)))
    for command in commands:
        words = shlex.split(command.replace("=***", "=mine"))[1:]  # which stands for what no page shows
        if words[0] in NOT_GIVEN or any(re.fullmatch(r"[A-Z]{3,}|.*=[A-Z]{2,}", word) for word in words):
            continue
        dry = ["--dry-run"] if words[0] == "sweep" and "--dry-run" not in words else []
        done = trisweep(*words, *dry, cwd=where)
        assert done.returncode == 0, (command, done.stderr)
    return commands


@pytest.mark.slow
def test_the_commands_of_a_sweep_that_was_measured(finished: Path, tmp_path: Path, trisweep: Command) -> None:
    shutil.copytree(finished, tmp_path / "here")
    where = tmp_path / "here"
    said = [(where / "said").read_text()]
    for words in (("status", "smoke"), ("report", "smoke"), ("pause", "smoke")):
        done = trisweep(*words, cwd=where, COLUMNS="300")
        said += [done.stdout, done.stderr]
    said += [path.read_text() for path in (where / "runs" / "smoke-local").glob("report.md")]
    commands = require_taken(trisweep, where, said)
    assert {"plan", "sweep", "retry"} <= {command.split()[1] for command in commands}, commands


@pytest.mark.slow
@pytest.mark.parametrize("words", [("frontier-study", "--dry-run"), ("smoke", "--dry-run"), ("175b", "--dry-run")])
def test_the_commands_of_a_dry_run_and_of_its_refusal(
    words: tuple[str, ...], tmp_path: Path, trisweep: Command
) -> None:
    done = trisweep("sweep", *words, cwd=tmp_path, COLUMNS="300")
    require_taken(trisweep, tmp_path, [done.stdout, done.stderr])
