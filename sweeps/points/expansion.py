"""Turns axes and lists into points, the values that set each trial apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from conf.axes import followed
from conf.errors import ConfigError
from conf.schema import Value
from conf.sweep_spec import PointSet
from conf.tree import Tree, value_at
from sweeps.points.axes import AxisSpace, Point

MOST_COMBINATIONS = 2_000_000
"""The most combinations that a grid goes through, which takes ten seconds."""
MOST_POINTS = 10_000
"""The most points of a grid that are estimated one by one, which takes fifteen seconds."""


def spaces_of(point_set: PointSet, tree: Tree, pinned: Mapping[str, Value]) -> list[AxisSpace]:
    """The blocks of axes, each over this configuration.

    Args:
        pinned: what the user overrode; such an axis has this one value.
    """
    return [AxisSpace.of(block, tree, pinned) for block in point_set.blocks]


def expand(point_set: PointSet, tree: Tree, pinned: Mapping[str, Value]) -> list[Point]:
    """Every point once: the baseline first, then the grid of each block of axes, then the listed points.

    Args:
        tree: the configuration, with the values that points leave unsaid.
        pinned: what the user overrode; points of another value are left out.

    Raises:
        ConfigError: no point is left, or there are too many to go through.
    """
    spaces = spaces_of(point_set, tree, pinned)
    for space in spaces:
        space.require_listed()
    _require_few(sum(space.num_combinations for space in spaces), MOST_COMBINATIONS, "combinations")
    points = list(_distinct(_all_points(point_set, spaces, tree), tree, pinned))
    _require_few(len(points), MOST_POINTS, "points")
    if not points:
        shown = ", ".join(f"{key}={value}" for key, value in pinned.items())
        raise ConfigError("sweep.points", shown, "leaves no point of the sweep", "Drop an override, or add a point.")
    return points


def stated_points(point_set: PointSet, tree: Tree, pinned: Mapping[str, Value]) -> list[Point]:
    """The baseline and the listed points, without the axes; empty where what is pinned leaves none."""
    return list(_distinct(_all_points(point_set, [], tree), tree, pinned))


def every_point(point_set: PointSet, tree: Tree, pinned: Mapping[str, Value], *, whole_grid: bool) -> Iterator[Point]:
    """Points one after another, as they come; a caller who wants a few does not wait for a large grid.

    Args:
        whole_grid: those on the axes too, of which a continuous range lists none.
    """
    spaces = spaces_of(point_set, tree, pinned) if whole_grid else []
    listed = [space for space in spaces if all(dimension.rows is not None for dimension in space.dimensions)]
    return _distinct(_all_points(point_set, listed, tree), tree, pinned)


def baseline_of(point_set: PointSet, tree: Tree) -> Point:
    """The baseline, with those values computed that follow from others."""
    return _plain(point_set.baseline, tree)


def _all_points(point_set: PointSet, spaces: list[AxisSpace], tree: Tree) -> Iterator[Point]:
    yield baseline_of(point_set, tree)
    for space in spaces:
        yield from space.grid()
    yield from (_plain(point, tree) for point in point_set.points)


def _plain(point: Mapping[str, Value], tree: Tree) -> Point:
    """A listed point, with those values computed that follow from others."""
    given = {key: value for key, value in point.items() if followed(value) is None}
    everywhere = AxisSpace((), (), tree)
    computed = {key: everywhere.plain(value, given, f"points.{key}") for key, value in point.items()}
    return {key: computed[key] for key in point}


def _distinct(points: Iterator[Point], tree: Tree, pinned: Mapping[str, Value]) -> Iterator[Point]:
    """Each point once that has the pinned values. Pinning an axis makes the points along it equal."""
    seen = set[tuple[tuple[str, object], ...]]()
    for point in points:
        # The kind counts, because Python takes 1, 1.0 and True for the same, and the configuration does not.
        content = tuple(sorted((key, (type(value), value)) for key, value in point.items()))
        if content in seen:
            continue
        seen.add(content)
        if all((point[key] if key in point else value_at(tree, key)) == value for key, value in pinned.items()):
            yield point


def _require_few(number: float, most: int, what: str) -> None:
    if number > most:
        remedy = "Use fewer values, tighter constraints, or a search that lists nothing: search=random or search=bayes."
        raise ConfigError("sweep.axes", f"{number:,.0f} {what}", f"are more than the {most:,} of a grid", remedy)
