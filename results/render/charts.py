"""Shapes of plots that several sections use, as Vega-Lite with data inside and without any theme."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]
Values = list[dict[str, Any]]

MOST_BARS = 16
BAR_HEIGHT = 22


def bars(values: Values, x: str, title: str, **encoding: Any) -> Spec:
    """Horizontal bars of field `x`, a bar for each `layout`, the first on top."""
    return {
        "data": {"values": values},
        "height": {"step": BAR_HEIGHT},
        "encoding": {"y": by_layout(values), "x": quantity(x, title)},
        "layer": [{"mark": {"type": "bar"}, "encoding": encoding}],
    }


def by_layout(values: Values) -> dict[str, Any]:
    """The layouts one below the other in the order of the values, with names that are never cut."""
    names = list(dict.fromkeys(value["layout"] for value in values))
    return category("layout", sort=names)


def category(field: str, **more: object) -> dict[str, Any]:
    """The encoding of a field of names, without a title."""
    return {"field": field, "type": "nominal", "title": None, **more}


def quantity(field: str, title: str, **more: object) -> dict[str, Any]:
    """The encoding of a field of numbers."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def dots(size: int, **style: object) -> dict[str, Any]:
    return {"type": "point", "filled": True, "size": size, **style}


def layer(mark: dict[str, Any], values: Values | None = None, **encoding: object) -> Spec:
    """Marks of one kind, of values of their own or of those of the whole plot."""
    data = {} if values is None else {"data": {"values": values}}
    return data | {"mark": mark, "encoding": encoding}


def tooltip(*fields: str) -> list[dict[str, str]]:
    return [{"field": field} for field in fields]
