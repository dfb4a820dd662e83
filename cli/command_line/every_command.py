"""Options that every command has, added to each in one place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.output.console import complaints, console
from conf.errors import EXIT_INTERRUPTED
from conf.folders import OPTION, further_folders

ConfigDirs = Annotated[
    list[Path] | None,
    typer.Option(
        OPTION, metavar="FOLDER", help="Your own clusters, models, sweeps ...; may be repeated.", show_default=False
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print nothing but errors, and what --json, --cfg, --as or --format asks for."),
]


def with_options_of_all(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with the options that every command has; it finds what they say done when it is called."""
    # Typer takes a command's options from its signature, which is therefore written by hand here.
    signature = inspect.signature(command, eval_str=True)

    @wraps(command)
    def run(*args: Any, config_dir: list[Path] | None = None, quiet: bool = False, **others: Any) -> None:
        console.quiet = quiet
        try:
            with further_folders(config_dir or ()):
                command(*args, **others)
        except KeyboardInterrupt:
            complaints.print("Interrupted.")
            raise typer.Exit(EXIT_INTERRUPTED) from None

    own = [
        inspect.Parameter("config_dir", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigDirs),
        inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
    ]
    parameters = [*signature.parameters.values(), *own]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
