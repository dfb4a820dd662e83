"""Options that every command has, added to each in one place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

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
        console.stderr = others.get("as_json", False)  # so that the document has stdout to itself
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


WORDS = {"int": "N", "float": "NUMBER", "path": "PATH", "str": "TEXT"}
"""By a part of the name of a type."""


class Command(TyperCommand):
    """A command whose help names values in plain words."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its arguments and options, `--help` among them."""
        return _named_plainly(super().get_params(ctx))


class HelpfulGroup(TyperGroup):
    """All commands together, likewise."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its own options, `--help` among them."""
        return _named_plainly(super().get_params(ctx))


def _named_plainly(parameters: list[Any]) -> list[Any]:
    for each in parameters:
        if each.metavar is None:
            each.metavar = "" if getattr(each, "is_bool_flag", False) else _word(each)
    return parameters


def _word(parameter: Any) -> str | None:
    """None leaves it to Typer, as for what is no option: its own name says what it is."""
    kind = str(getattr(getattr(parameter, "type_descriptor", parameter), "annotation", "")).lower()
    words = (word for part, word in WORDS.items() if part in kind)
    return next(words, None) if parameter.param_type_name == "option" else None


PROBLEMS = {
    "int_parsing": "is not a whole number",
    "int_from_float": "is not a whole number",
    "float_parsing": "is not a number",
    "greater_than_equal": "is below {ge}",
    "less_than_equal": "is above {le}",
}
"""The fault of a value, by the type of pydantic's error."""

# What all of these have in common is public under no name: it is Click's class, or Typer's own copy of it.
WrongArguments: type[Exception] = typer.BadParameter.__mro__[1]


def complaint_of(error: Any) -> str:
    """The complaint about an error of class `WrongArguments`; empty where help was printed in its place."""
    said = _problem(error).rstrip(".")
    command = error.ctx.command_path if error.ctx else "trisweep"
    stop = "" if said.endswith("?") else "."
    return f"{said}{stop} `{command} --help` says what it takes." if said else ""


def _problem(error: Any) -> str:
    details: list[Any] = getattr(error.__cause__, "errors", list)()
    if details and (problem := PROBLEMS.get(details[0]["type"])):
        name = max(error.param.opts, key=len)
        return f"{name} = {details[0]['input']!r}: {problem.format(**details[0].get('ctx', {}))}"
    if meant := getattr(error, "possibilities", None):
        return f"{error.message}. Did you mean {' or '.join(sorted(meant))}?"
    return str(error.format_message())
