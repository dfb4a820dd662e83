"""From axes and lists to points: which values set each trial apart."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from conf.errors import ConfigError
from conf.schema import Value
from conf.sweep_spec import PointSet

Point = dict[str, Value]


def expand(point_set: PointSet, base: Mapping[str, Value], pinned: Mapping[str, Value]) -> list[Point]:
    """Every point once: the baseline first, then the grid of the axes in their order, then the listed points.

    Args:
        base: the values that points leave unsaid, by dotted key.
        pinned: what the user overrode; points of another value are left out.

    Raises:
        ConfigError: no point is left.
    """
    keys = list(point_set.axes)
    grid = (
        [dict(zip(keys, values, strict=True)) for values in itertools.product(*point_set.axes.values())] if keys else []
    )
    points: list[Point] = []
    for point in [dict(point_set.baseline), *(_pin(point, pinned) for point in grid), *point_set.points]:
        # Pinning an axis makes the points along it equal, so each is taken only once.
        if point not in points and all(point.get(key, base.get(key)) == value for key, value in pinned.items()):
            points.append(point)
    if not points:
        shown = ", ".join(f"{key}={value}" for key, value in pinned.items())
        raise ConfigError("sweep.points", shown, "leaves no point of the sweep", "Drop an override, or add a point.")
    return points


def _pin(point: Point, pinned: Mapping[str, Value]) -> Point:
    return {key: pinned.get(key, value) for key, value in point.items()}
