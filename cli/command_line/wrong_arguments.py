"""Typer's refusals before a command runs, as a sentence like every other complaint of this command line."""

from __future__ import annotations

from typing import Any

import typer

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
