"""Complaints about values that are not of their type, without pydantic's own words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from conf.compose.settings import Settings
from conf.credentials import shown_value
from conf.errors import ConfigError
from conf.nearest import nearest

KEY_ITSELF = "[key]"
"""Pydantic's addition to the place of a mapping's key that is wrong."""
CORRECT = "Correct it in the override, or in the file of its group."
WORDS_FOR_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping of names to values",
}
"""The kind of a value, by the first part of pydantic's name of the mistake, such as `int_type` and `int_parsing`."""
BRANCHES = ("str", "int", "float", "bool")
"""Pydantic's addition to the place of a value that may be of several types."""
SINGLE = "must be a single value (text, number, true/false or null)"
MISTAKES_OF_KIND = ("type", "parsing", "from_float")


def first_complaint(error: ValidationError, model: type[BaseModel], prefix: str) -> ConfigError:
    """The first of the mistakes, with its dotted key, its value and the remedy."""
    mistakes = error.errors(include_url=False)
    complaint = mistakes[0]
    place = complaint["loc"]
    branches = {each["loc"][-1] for each in mistakes if each["loc"] and each["loc"][:-1] == place[:-1]}
    if place[-1:] and place[-1] in BRANCHES and len(branches) > 1:
        place = place[:-1]  # of a value of several types pydantic complains once for each
    parts = [str(part) for part in place if part != KEY_ITSELF]
    key = prefix + ".".join(parts)
    if complaint["type"] == "missing":
        return ConfigError(key, None, "is missing", f"Add it: {key}=VALUE, or in the file of its group.")
    if complaint["type"] == "extra_forbidden":
        siblings = [prefix + ".".join([*parts[:-1], name]) for name in field_names(model, parts[:-1])]
        return ConfigError(key, complaint["input"], "is not a known key", nearest(key, siblings))
    if complaint["type"] == "model_type":  # pydantic's own words name a class of ours
        return ConfigError(key, complaint["input"], "is not a group of values", _entries(field_names(model, parts)))
    remedy = complaint.get("ctx", {}).get("remedy", CORRECT)
    problem = SINGLE if branches == set(BRANCHES) else _problem(complaint)
    return ConfigError(key, shown_value(key, complaint["input"]), problem, remedy)


def _entries(fields: Sequence[str]) -> str:
    return f"Give it values for {', '.join(fields)}." if fields else "Give it values by their names."


def _problem(complaint: ErrorDetails) -> str:
    kind, _, mistake = complaint["type"].partition("_")
    if kind in WORDS_FOR_KINDS and mistake in MISTAKES_OF_KIND:
        return f"must be {WORDS_FOR_KINDS[kind]}"
    if complaint["type"] == "too_short":
        return f"must have {complaint['ctx']['min_length']} or more entries"
    if complaint["type"] == "string_pattern_mismatch":  # names alone have a pattern
        return "must be a name: letters, digits, dots, underscores and dashes, a letter or a digit first"
    # pydantic speaks of an input; ours begin with a verb, since they follow the key and its value.
    words = complaint["msg"].replace("Input should", "must", 1).replace("String should", "must", 1)
    return words[0].lower() + words[1:]


@cache
def dotted_fields() -> frozenset[str]:
    """Every dotted key that a composed configuration may have, of groups and of values."""
    return frozenset(key for key, _ in _below(Settings, "", ()))


def can_be_set(key: str) -> bool:
    """True if a dotted key is a field, or an entry of one that is a mapping, inside entries of other ones too."""
    mapping = key.rpartition(".")[0]
    return key in dotted_fields() or any(re.fullmatch(pattern, mapping) for pattern in _mappings())


@cache
def kinds_of(key: str) -> frozenset[Any]:
    """The types that the value of a dotted key may be of; empty of a key that is no field."""
    return frozenset(of for known, kind in _below(Settings, "", ()) if known == key for of in _branches(kind))


def _branches(kind: Any) -> Iterator[Any]:
    if get_origin(kind) in (Union, UnionType, Annotated):
        for part in get_args(kind):
            yield from _branches(part)
    else:
        yield get_origin(kind) or kind


@cache
def _mappings() -> tuple[str, ...]:
    """Patterns of the dotted keys of fields that are mappings; of those inside entries of others, each entry's too."""
    return tuple(_mappings_below(Settings, ""))


def _mappings_below(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for key, kind in _below(model, "", ()):
        if get_origin(kind) is dict:
            pattern = f"{prefix}{re.escape(key)}"
            yield pattern
            if (entry := single_model(get_args(kind)[1])) is not None:
                yield from _mappings_below(entry, rf"{pattern}\.[^.]+\.")


def _below(model: type[BaseModel], prefix: str, above: tuple[type[BaseModel], ...]) -> Iterator[tuple[str, Any]]:
    """Each dotted key with its type."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}", field.annotation
        if (inner := single_model(field.annotation)) is not None and inner not in above:
            yield from _below(inner, f"{prefix}{name}.", (*above, model))


def field_names(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The keys that can stand at a path inside a model; none where plain values stand."""
    for part in path:
        field = model.model_fields.get(part)
        if field is None:  # a key or a number inside a mapping or list of models
            continue
        inner = model_in(field.annotation)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def model_in(kind: Any) -> type[BaseModel] | None:
    """The X of `X`, `X | None`, `dict[str, X]` and `tuple[X, ...]`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((model for part in get_args(kind) if (model := model_in(part))), None)


def single_model(kind: Any) -> type[BaseModel] | None:
    """The X of `X` and `X | None`, whose own keys follow a dot."""
    either = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next((part for part in either if isinstance(part, type) and issubclass(part, BaseModel)), None)
