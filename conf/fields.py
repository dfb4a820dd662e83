"""The keys that the types of the configuration have, of which a file states only those that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from conf.settings import Settings


@cache
def dotted_fields() -> frozenset[str]:
    """Every dotted key that a composed configuration may have, of groups and of values."""
    return frozenset(key for key, _ in _below(Settings, "", ()))


def can_be_set(key: str) -> bool:
    """True if a dotted key is a field, or an entry of one that is a mapping."""
    return key in dotted_fields() or key.rpartition(".")[0] in _mappings()


@cache
def _mappings() -> frozenset[str]:
    return frozenset(key for key, kind in _below(Settings, "", ()) if get_origin(kind) is dict)


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
    return next((found for part in get_args(kind) if (found := model_in(part))), None)


def single_model(kind: Any) -> type[BaseModel] | None:
    """The X of `X` and `X | None`, whose own keys follow a dot."""
    either = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next((part for part in either if isinstance(part, type) and issubclass(part, BaseModel)), None)
