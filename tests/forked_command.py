"""A command as a process of its own, forked from one that has imported what it needs: seconds less for each."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import hydra

from tests.composed import compose_choices_once

NEEDED = (
    "tests.composed",
    "tests.forked_from",
    "hydra",
    "sweeps.planner.choosing.choice",
    "costs",
    "typer",
    "rich.console",
    "rich.table",
)
"""Not `cli`, whose console looks at the environment when it is imported."""

PATIENCE_SECONDS = 240


FOR_RESULTS = ("mlflow", "mlflow.store.tracking.sqlalchemy_store", "results.mlflow.sweep_import", "scipy.stats")
"""What commands load that write a report and fill a store."""


def run_forked(
    arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str], module: str = "cli.main", umask: int = 0o022
) -> subprocess.CompletedProcess[str]:
    """The command's exit code and what it said.

    Args:
        module: whose `main` is the command.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*NEEDED])

    def exit_code(said: list[Path]) -> int | None:
        process = context.Process(target=_be_the_command, args=(module, arguments, cwd, dict(environment), umask, said))
        process.start()
        return _exit_code_of(process)

    return _completed([module, *arguments], exit_code)


class Commands:
    """Commands, each forked from a process that has loaded what writes a report, where that was started.

    A report takes a fifth of the time then; the process itself takes as long to start as one report without it.
    """

    def __init__(self) -> None:
        self.connection: Connection | None = None

    def start(self) -> None:
        """Once: whoever runs commands that write a report may say so."""
        if self.connection is not None:
            return
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*NEEDED])
        self.connection, theirs = context.Pipe()
        context.Process(target=_serve_commands, args=(theirs,)).start()
        theirs.close()

    def stop(self) -> None:
        """Close the pipe, at whose end the process leaves."""
        if self.connection is not None:
            self.connection.close()

    def run(
        self, arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """As `run_forked` does, and by it where nothing was started."""
        connection = self.connection
        if connection is None:
            return run_forked(arguments, cwd, environment)

        def exit_code(said: list[Path]) -> int | None:
            connection.send(("cli.main", arguments, cwd, dict(environment), 0o022, said))
            return connection.recv()

        return _completed(["cli.main", *arguments], exit_code)


def _serve_commands(connection: Connection) -> None:
    from results.mlflow.store import apply_quiet_settings
    from results.render.page import plot_library

    apply_quiet_settings()
    for name in FOR_RESULTS:
        import_module(name)
    plot_library()
    while True:
        try:
            command = connection.recv()
        except EOFError:
            return
        process = multiprocessing.get_context("fork").Process(target=_be_the_command, args=command)
        process.start()
        connection.send(_exit_code_of(process))


def _exit_code_of(process: BaseProcess) -> int | None:
    """None if the process had to be killed."""
    process.join(PATIENCE_SECONDS)
    if process.exitcode is None:
        process.kill()
        return None
    return process.exitcode


def _completed(command: list[str], exit_code: Callable[[list[Path]], int | None]) -> subprocess.CompletedProcess[str]:
    with TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("stdout", "stderr")]
        code = exit_code(said)
        if code is None:
            raise subprocess.TimeoutExpired(command, PATIENCE_SECONDS)
        return subprocess.CompletedProcess(command, code, *(path.read_text() for path in said))


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
    hydra.compose = compose_choices_once  # type: ignore[assignment]
    import_module(module).main()
