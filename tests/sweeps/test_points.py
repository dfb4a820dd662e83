"""From axes and lists to points."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from conf.sweep_spec import PointSet
from sweeps.points import expand

GRID = PointSet(axes={"a.x": (1, 2), "a.y": (3, 4)}, points=({"a.x": 9},), baseline={"a.x": 1, "a.y": 3})


def test_the_baseline_comes_first_and_no_point_comes_twice() -> None:
    points = expand(GRID, base={}, pinned={})
    assert points == [
        {"a.x": 1, "a.y": 3},
        {"a.x": 1, "a.y": 4},
        {"a.x": 2, "a.y": 3},
        {"a.x": 2, "a.y": 4},
        {"a.x": 9},
    ]


def test_a_pinned_axis_keeps_its_value_and_other_points_are_left_out() -> None:
    points = expand(GRID, base={"a.x": 2}, pinned={"a.x": 2})
    assert points == [{"a.x": 2, "a.y": 3}, {"a.x": 2, "a.y": 4}]


def test_a_point_that_leaves_a_pinned_key_unsaid_has_the_base_value() -> None:
    points = expand(PointSet(axes={}, points=({"b": 1},), baseline={}), base={"a.x": 2}, pinned={"a.x": 2})
    assert points == [{}, {"b": 1}]


def test_pinning_to_a_value_no_listed_point_has_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"sweep\.points = 'a\.x=7': leaves no point"):
        expand(PointSet(axes={}, points=({"a.x": 1},), baseline={"a.x": 2}), base={"a.x": 7}, pinned={"a.x": 7})
