"""The types of values by dotted keys: which keys a configuration may have, and what may stand at each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, reduce
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from conf.compose.settings import Settings


@cache
def dotted_fields() -> frozenset[str]:
    """Every dotted key that a composed configuration may have, of groups and of values."""
    return frozenset(_below(Settings, "", ()))


@cache
def kinds_of(key: str) -> frozenset[Any]:
    """The types that the value of a dotted key may be of; empty of a key that can be none."""
    return kinds_in(kind_at(key))


def kinds_in(kind: Any) -> frozenset[Any]:
    """The types without what they hold: `tuple` of a list of any entries."""
    return frozenset(get_origin(part) or part for part in _parts(kind))


@cache
def kind_at(key: str) -> Any:
    """The type of what stands at a dotted key, entries of mappings included; None where nothing can."""
    return reduce(kind_below, key.split("."), Settings)


def kind_below(kind: Any, name: str | None) -> Any:
    """The type of what stands under a name in a value of a type, or in its list (no name); None where nothing can."""
    for part in _parts(kind):
        if isinstance(part, type) and issubclass(part, BaseModel):
            field = part.model_fields.get(name or "")
            return field.annotation if field else None
        if get_origin(part) in ((tuple, list) if name is None else (dict,)):
            return get_args(part)[0 if name is None else 1]
    return None


def _parts(kind: Any) -> Iterator[Any]:
    """The types of which a value may be one."""
    if get_origin(kind) is Annotated:
        yield from _parts(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from _parts(part)
    elif hasattr(kind, "__value__"):  # a type that has a name
        yield from _parts(kind.__value__)
    elif kind is not None:
        yield kind


def _below(model: type[BaseModel], prefix: str, above: tuple[type[BaseModel], ...]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        models = (part for part in _parts(field.annotation) if isinstance(part, type) and issubclass(part, BaseModel))
        if (inner := next(models, None)) is not None and inner not in above:
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
