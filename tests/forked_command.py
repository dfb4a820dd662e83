"""`trisweep` as a process of its own, forked from one that has imported what it needs: a second less for each."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

NEEDED = ("conf.load", "hydra", "sweeps.planner", "train_core.costs", "typer", "rich.console", "rich.table")
"""Not `launcher`, whose consoles look at the environment when they are imported."""

PATIENCE_SECONDS = 240


def run_forked(
    arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """The command's exit code and what it said."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*NEEDED])
    with TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("stdout", "stderr")]
        process = context.Process(target=_be_the_command, args=(arguments, cwd, dict(environment), said))
        process.start()
        process.join(PATIENCE_SECONDS)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(["trisweep", *arguments], PATIENCE_SECONDS)
        return subprocess.CompletedProcess(
            ["trisweep", *arguments], process.exitcode, *(path.read_text() for path in said)
        )


def _be_the_command(arguments: tuple[str, ...], cwd: Path, environment: dict[str, str], said: list[Path]) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for stream, path in zip((1, 2), said, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    sys.argv = ["trisweep", *arguments]
    from cli.main import main

    main()
