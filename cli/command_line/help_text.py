"""The names of values in `--help`: nothing for a switch, else one word, instead of Python's types."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

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
