"""A command as a process of its own, forked from one that has imported what it needs: a second less for each."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

NEEDED = ("conf.compose.load", "hydra", "sweeps.planner", "train_core.costs", "typer", "rich.console", "rich.table")
"""Not `cli`, whose console looks at the environment when it is imported."""

PATIENCE_SECONDS = 240


def run_forked(
    arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str], module: str = "cli.main", umask: int = 0o022
) -> subprocess.CompletedProcess[str]:
    """The command's exit code and what it said.

    Args:
        module: whose `main` is the command.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*NEEDED])
    with TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("stdout", "stderr")]
        given = (module, arguments, cwd, dict(environment), umask, said)
        process = context.Process(target=_be_the_command, args=given)
        process.start()
        process.join(PATIENCE_SECONDS)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired([module, *arguments], PATIENCE_SECONDS)
        return subprocess.CompletedProcess([module, *arguments], process.exitcode, *(path.read_text() for path in said))


def _be_the_command(
    module: str, arguments: tuple[str, ...], cwd: Path, environment: dict[str, str], umask: int, said: list[Path]
) -> None:
    os.chdir(cwd)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environment)
    for stream, path in zip((1, 2), said, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    sys.argv = ["trisweep", *arguments]
    import_module(module).main()
