"""Templates of a trainer's file: texts in which the names of values stand in braces, and the values put in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from conf.errors import ConfigError
from conf.nearest import most_like
from conf.overrides import value_text

Plain: TypeAlias = bool | int | float | str | tuple[bool | int | float | str | None, ...] | None
Names: TypeAlias = Mapping[str, Plain]
"""The values of a template's names."""

TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
MOST_SHOWN = 8


def template_value(template: str, names: Names, key: str) -> Plain:
    """The value of a template; where it is one name and nothing else, the value keeps its type.

    Args:
        key: of the configuration, for errors.

    Raises:
        ConfigError: a name is not known, or a brace stands alone.
    """
    # A name alone keeps its type, so that true, null and lists can say how a flag is written.
    whole = TOKEN.fullmatch(template)
    if whole is not None and whole.group(1) is not None:
        return _value_named(whole.group(1), template, names, key)
    return fill_text(template, names, key)


def fill_text(template: str, names: Names, key: str) -> str:
    """The template as a text, with every value as it would be written on a command line.

    Raises ConfigError where a name is not known or has no value, or a brace stands alone.
    """

    def replacement(match: re.Match[str]) -> str:
        token, name = match.group(0), match.group(1)
        if token in ("{{", "}}"):
            return token[0]
        if name is None:
            raise ConfigError(
                key, template, f"has a {token} without the other brace", f"Write {token * 2} for a brace itself."
            )
        value = _value_named(name, template, names, key)
        if value is None:
            remedy = "Give it a value, or make it the whole value of a flag, which is then left out."
            raise ConfigError(key, template, f"{name} is null here, and cannot be part of a text", remedy)
        return text_of(value)

    return TOKEN.sub(replacement, template)


def text_of(value: Plain) -> str:
    """A value as most programs read it: `true`, `0.0003`, `5,6,5`."""
    if isinstance(value, tuple):
        return ",".join(map(text_of, value))
    return value_text(value)


def _value_named(name: str, template: str, names: Names, key: str) -> Plain:
    if name in names:
        return names[name]
    if name.startswith("trainer."):
        problem = f"{{{name}}} is not the name of a value"
        remedy = (
            "Keys of trainer cannot stand in braces, except trainer.name and trainer.start: write the value itself."
        )
        raise ConfigError(key, template, problem, remedy)
    # Most slips leave out the group, and a likeness of letters would not find the key that is right at its end.
    ends_so = [other for other in names if other.rsplit(".", 1)[-1] == name]
    meant = ends_so[0] if ends_so else most_like(name, tuple(names))
    derived = [other for other in names if "." not in other]
    remedy = f"Use a key of the configuration, or one of {', '.join(derived[:MOST_SHOWN])}."
    if meant is not None:
        remedy = f"Did you mean {{{meant}}}?"
    raise ConfigError(key, template, f"{{{name}}} is not the name of a value", remedy)
