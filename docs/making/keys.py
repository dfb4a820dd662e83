"""The page of every key of the configuration: its values, its default, its meaning, and the files of its group."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from conf.compose.kinds import model_in
from conf.compose.load import compose_tree
from conf.compose.settings import Settings
from conf.compose.tree import Tree
from conf.folders import options
from conf.plan.setup_parts import EXAMPLE, MIXED

HEAD = """# Every key of the configuration

This page is for users who look up a key. A key is written with dots, as in
`trisweep plan 175b parallel.tensor_parallel_size=8`; a group takes the name of one of its files, as in
`cluster=frontier`. *Default* is the value where nothing else is said; a sweep's file sets its own.
"""
DESCRIBED = re.compile(r"^    (\w[\w, ]*): (.*(?:\n {8,}.*)*)", re.MULTILINE)
"""A line under `Attributes:` with what continues it."""

Schema = dict[str, Any]


def page() -> str:
    """The whole page as Markdown."""
    tree = compose_tree()
    fields = {name: field for name, field in Settings.model_fields.items() if name != MIXED}
    groups = {name: model for name, field in fields.items() if (model := model_in(field.annotation))}
    sections = [_group(name, model, tree.get(name)) for name, model in groups.items()]
    schema, described = Settings.model_json_schema(), _meanings(Settings)
    rest = [_row(name, schema, described[name], _text_of(tree[name])) for name in fields if name not in groups]
    rest.append([f"`{MIXED}`", f"text such as `{EXAMPLE}`, or `null`", "`null`", _meanings(Settings)[MIXED]])
    return "\n".join([HEAD, *sections, "## Outside of groups\n", *_table(rest)]) + "\n"


def _group(name: str, model: type[BaseModel], values: Tree | None) -> str:
    first_sentence = " ".join(inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].split())
    lines = [f"## {name}\n", first_sentence, ""]
    if files := options(name):
        lines += [f"Files: {', '.join(f'`{file}`' for file in files)}.", ""]
    return "\n".join([*lines, *_table(list(_rows(name, model, values, {})))]) + "\n"


def _rows(
    prefix: str, model: type[BaseModel], values: Tree | None, shown_at: dict[type[BaseModel], str]
) -> Iterator[list[str]]:
    """A row for each field, those of nested values after the field that holds them.

    Args:
        shown_at: by type, the key below which its fields stand already; they are named and not shown again.
    """
    schema, described = model.model_json_schema(), _meanings(model)
    known = _known_base(model, shown_at)
    shown_at.update(dict.fromkeys((each for each in model.__mro__ if _has_fields(each)), prefix) | shown_at)
    for name, field in model.model_fields.items():
        if known is not None and name in known.model_fields:
            continue
        value, nested = (values or {}).get(name), model_in(field.annotation)
        shown = _text_of(value) if values and name in values and not isinstance(value, dict) else ""
        key, meaning = f"{prefix}.{name}", described.get(name, "")
        if nested is not None and (base := _known_base(nested, shown_at)) is not None:
            names = ", ".join(f"`{each}`" for each in base.model_fields)
            meaning += f" It has the keys {names} of `{shown_at[base]}`."
        yield _row(key, schema, meaning, shown)
        if nested is not None:
            below = f"{key}[]" if "tuple" in str(field.annotation) else key
            yield from _rows(below, nested, value if isinstance(value, dict) else None, shown_at)


def _known_base(model: type[BaseModel], shown_at: dict[type[BaseModel], str]) -> type[BaseModel] | None:
    """The nearest of the type and those that it builds on whose fields are shown."""
    return next((each for each in model.__mro__ if each in shown_at), None)


def _has_fields(kind: type) -> bool:
    return issubclass(kind, BaseModel) and bool(kind.model_fields)


def _row(key: str, schema: Schema, meaning: str, default: str) -> list[str]:
    values = _values(schema["properties"][key.rsplit(".", 1)[-1]], schema)
    return [f"`{key}`", values, f"`{default}`" if default else "", meaning]


def _table(rows: list[list[str]]) -> list[str]:
    cells = [["key", "values", "default", "meaning"], ["---"] * 4, *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells]


def _values(schema: Schema, root: Schema) -> str:
    """What a key takes, in words."""
    if "$ref" in schema:
        return _values(root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], root)
    if "anyOf" in schema:
        if {each.get("type") for each in schema["anyOf"]} >= NAMES.keys() - {"null", "object"}:
            return "any value"
        return " or ".join(dict.fromkeys(_values(each, root) for each in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{_text_of(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_values(schema.get('items', {}), root)}"
    return NAMES.get(schema.get("type", ""), "any value") + _bounds(schema)


NAMES = {
    "integer": "integer",
    "number": "number",
    "boolean": "`true`, `false`",
    "string": "text",
    "null": "`null`",
    "object": "keys",
}


def _bounds(schema: Schema) -> str:
    words = {"exclusiveMinimum": "above", "minimum": "at least", "maximum": "at most", "exclusiveMaximum": "below"}
    bounds = [f"{word} {schema[name]:g}" for name, word in words.items() if name in schema]
    return f" {' and '.join(bounds)}" if bounds else ""


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """What the docstrings of the class and of those it builds on say of each field."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        text = inspect.cleandoc(each.__dict__.get("__doc__") or "")
        _, _, attributes = text.partition("Attributes:\n")
        for names, meaning in DESCRIBED.findall(attributes):
            found |= {name.strip(): _sentence(meaning) for name in names.split(",")}
    return found


def _sentence(meaning: str) -> str:
    text = " ".join(meaning.split())
    return text[:1].upper() + text[1:]
