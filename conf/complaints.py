"""Complaints about values that are not of their type, without pydantic's own words."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from conf.errors import ConfigError
from conf.fields import field_names
from conf.nearest import nearest

KEY_ITSELF = "[key]"
"""Pydantic's addition to the place of a mapping's key that is wrong."""
CORRECT = "Correct it in the override, or in the file of its group."
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping of names to values",
}
"""The kind of a value, by the first part of pydantic's name of the mistake, such as `int_type` and `int_parsing`."""
MISTAKES_OF_KIND = ("type", "parsing", "from_float")


def first_complaint(error: ValidationError, model: type[BaseModel], prefix: str) -> ConfigError:
    """The first of the mistakes, with its dotted key, its value and the remedy."""
    complaint = error.errors(include_url=False)[0]
    parts = [str(part) for part in complaint["loc"] if part != KEY_ITSELF]
    key = prefix + ".".join(parts)
    if complaint["type"] == "missing":
        return ConfigError(key, None, "is missing", f"Add it: {key}=VALUE, or in the file of its group.")
    if complaint["type"] == "extra_forbidden":
        siblings = [prefix + ".".join([*parts[:-1], name]) for name in field_names(model, parts[:-1])]
        return ConfigError(key, complaint["input"], "is not a known key", nearest(key, siblings))
    if complaint["type"] == "model_type":  # pydantic's own words name a class of ours
        return ConfigError(key, complaint["input"], "is not a group of values", _entries(field_names(model, parts)))
    remedy = complaint.get("ctx", {}).get("remedy", CORRECT)
    return ConfigError(key, complaint["input"], _problem(complaint), remedy)


def _entries(fields: Sequence[str]) -> str:
    return f"Give it values for {', '.join(fields)}." if fields else "Give it values by their names."


def _problem(complaint: ErrorDetails) -> str:
    kind, _, mistake = complaint["type"].partition("_")
    if kind in KINDS and mistake in MISTAKES_OF_KIND:
        return f"must be {KINDS[kind]}"
    if complaint["type"] == "too_short":
        return f"must have {complaint['ctx']['min_length']} or more entries"
    if complaint["type"] == "string_pattern_mismatch":  # names alone have a pattern
        return "must be a name: letters, digits, dots, underscores and dashes, a letter or a digit first"
    said = complaint["msg"].replace("Input should", "must", 1).replace("String should", "must", 1)
    return said[0].lower() + said[1:]
