"""From axes and lists to points."""

from __future__ import annotations

from typing import Any

import pytest

from conf.compose.complaints import validate
from conf.compose.tree import Tree, part_at, with_values
from conf.errors import ConfigError
from conf.types.schema import Value
from conf.types.sweep_spec import PointSet
from sweeps.points.axes import expand, stated_points
from tests.composed import compose_tree
from tests.messages import refused

GRID = validate(
    PointSet, {"axes": {"a.x": [1, 2], "a.y": [3, 4]}, "points": [{"a.x": 9}], "baseline": {"a.x": 1, "a.y": 3}}
)
TREE: Tree = {
    "a": {"name": "first", "x": 2, "y": 0, "z": 5},
    "b": 0,
    "word": "one",
    "trainer": {"flags": {"seed": 1}, "files": {"c.json": {"lr": 3}}},
    "sweep": {"axes": {"a.xx": [1]}},
    "slurm": {"qos": None},
    "cluster": {"num_nodes": 2},
}


def points_of(pinned: dict[str, Value] | None = None, **blocks: Any) -> list[dict[str, Value]]:
    """The points of a sweep whose baseline says nothing, without that baseline."""
    stated = {"points": [], "baseline": {}, **blocks}
    first, *rest = expand(validate(PointSet, stated, "sweep."), TREE, pinned or {})
    return rest if first == {} else [first, *rest]


def test_the_baseline_comes_first_and_no_point_comes_twice() -> None:
    points = expand(GRID, TREE, pinned={})
    assert points == [
        {"a.x": 1, "a.y": 3},
        {"a.x": 1, "a.y": 4},
        {"a.x": 2, "a.y": 3},
        {"a.x": 2, "a.y": 4},
        {"a.x": 9},
    ]


def test_an_axis_that_others_follow_from_need_not_be_of_the_trial_itself() -> None:
    points = points_of(axes={"cluster.num_nodes": [1, 2], "b": "=8 * cluster.num_nodes"})
    assert [point["b"] for point in points] == [8, 16]


def test_an_axis_may_vary_what_stands_in_a_file_whose_name_has_a_dot() -> None:
    key = "trainer.files.c.json.lr"
    points = points_of(axes={key: [1, 2], "b": f"={key} * 2"})
    assert points == [{key: 1, "b": 2}, {key: 2, "b": 4}]
    assert part_at(with_values(TREE, points[1]), key) == 2
    assert TREE["trainer"]["files"]["c.json"] == {"lr": 3}


def test_a_pinned_axis_keeps_its_value_and_other_points_are_left_out() -> None:
    points = expand(GRID, TREE, pinned={"a.x": 2})
    assert points == [{"a.x": 2, "a.y": 3}, {"a.x": 2, "a.y": 4}]


def test_a_point_that_leaves_a_pinned_key_unsaid_has_the_base_value() -> None:
    points = expand(PointSet(axes={}, points=({"b": 1},), baseline={}), TREE, pinned={"a.x": 2})
    assert points == [{}, {"b": 1}]


def test_pinning_to_a_value_no_listed_point_has_is_an_error() -> None:
    with refused(ConfigError, "sweep.points"):
        expand(PointSet(axes={}, points=({"a.x": 1},), baseline={"a.x": 2}), {"a": {"x": 7}}, pinned={"a.x": 7})


def test_a_range_takes_as_many_values_as_it_says_evenly_or_in_even_ratios() -> None:
    assert points_of(axes={"b": {"low": 0.0, "high": 1.0, "num": 3}}) == [{"b": 0.0}, {"b": 0.5}, {"b": 1.0}]
    decades = points_of(axes={"b": {"low": 1e-5, "high": 1e-3, "log": True, "num": 3}})
    assert decades == [{"b": 1e-5}, {"b": 1e-4}, {"b": 1e-3}]


def test_a_range_of_whole_numbers_takes_all_of_them_or_every_step() -> None:
    assert points_of(axes={"b": {"low": 4, "high": 7}}) == [{"b": 4}, {"b": 5}, {"b": 6}, {"b": 7}]
    assert points_of(axes={"b": {"low": 4, "high": 11, "step": 3}}) == [{"b": 4}, {"b": 7}, {"b": 10}]
    assert points_of(axes={"b": {"low": 1, "high": 8, "log": True, "num": 4}}) == [{"b": n} for n in (1, 2, 4, 8)]


def test_steps_of_a_range_are_the_numbers_that_people_would_write() -> None:
    points = points_of(axes={"b": {"low": 0.1, "high": 0.7, "step": 0.2}})
    assert points == [{"b": 0.1}, {"b": 0.3}, {"b": 0.5}, {"b": 0.7}]


def test_zipped_axes_go_side_by_side_and_the_grid_is_around_them() -> None:
    points = points_of(axes={"b": [1, 2]}, zip=[{"a.x": [10, 20], "a.y": [1, 2]}])
    assert points == [
        {"b": 1, "a.x": 10, "a.y": 1},
        {"b": 1, "a.x": 20, "a.y": 2},
        {"b": 2, "a.x": 10, "a.y": 1},
        {"b": 2, "a.x": 20, "a.y": 2},
    ]


def test_a_conditional_axis_exists_only_where_its_condition_holds() -> None:
    points = points_of(axes={"a.y": {"values": [7, 8], "when": "word == 'two'"}, "word": ["one", "two"]})
    assert points == [{"word": "one"}, {"word": "two", "a.y": 7}, {"word": "two", "a.y": 8}]


def test_a_condition_may_depend_on_the_configuration_alone() -> None:
    assert points_of(axes={"b": [1], "a.y": {"values": [7], "when": "a.z == 5"}}) == [{"b": 1, "a.y": 7}]
    assert points_of(axes={"b": [1], "a.y": {"values": [7], "when": "a.z == 6"}}) == [{"b": 1}]


def test_values_may_follow_from_other_axes_wherever_those_stand() -> None:
    points = points_of(axes={"a.y": "=2 * a.x", "a.x": [1, 3]})
    assert points == [{"a.x": 1, "a.y": 2}, {"a.x": 3, "a.y": 6}]
    points = points_of(axes={"a.y": ["=a.z", "=10 * a.z"]})
    assert points == [{"a.y": 5}, {"a.y": 50}]


def test_listed_points_and_the_baseline_may_hold_values_that_follow() -> None:
    point_set = PointSet(points=({"b": "=a.x + 1", "a.x": 4},), baseline={"b": "=a.z"})
    assert expand(point_set, TREE, {}) == [{"b": 5}, {"b": 5, "a.x": 4}]
    assert stated_points(point_set, TREE, {}) == expand(point_set, TREE, {})


def test_spaces_come_one_after_another_under_the_constraints_of_all() -> None:
    spaces = [{"axes": {"a.y": [1, 2, 3]}, "constraints": ["a.y != 2"]}, {"axes": {"a.z": [1, 9]}}]
    points = points_of(axes={"b": [1, 2]}, spaces=spaces, constraints=["b < 2", "a.z < 9"])
    assert points == [{"b": 1}, {"a.y": 1}, {"a.y": 3}, {"a.z": 1}]


def test_constraints_bind_the_grid_and_not_what_the_file_lists() -> None:
    assert points_of(axes={"b": [1, 2, 3]}, constraints=["b <= 2"], points=[{"b": 9}]) == [{"b": 1}, {"b": 2}, {"b": 9}]


def test_a_pinned_key_of_a_zipped_group_keeps_the_rows_that_have_it() -> None:
    points = expand(PointSet(zip=({"a.x": (1, 2), "a.y": (3, 4)},), points=(), baseline={}), TREE, pinned={"a.x": 2})
    assert points == [{}, {"a.x": 2, "a.y": 4}]
    computed = PointSet(zip=({"a.x": (1, "=b + 2"), "a.y": (3, 4)},), points=(), baseline={})
    assert expand(computed, TREE, pinned={"a.x": 2}) == [{}, {"a.x": 2, "a.y": 4}]


def test_accumulation_is_an_axis_through_the_batch_that_follows_from_it() -> None:
    tree = compose_tree(["model=gpt-175b", "cluster=frontier", "parallel=frontier-175b"])
    accumulated = [f"={steps} * batch.micro_batch_size * data_parallel_size" for steps in (5, 10)]
    axes = {"batch.global_batch_size": accumulated, "parallel.world_size": [128, 256]}
    points = expand(validate(PointSet, {"axes": axes, "points": [], "baseline": {}}), tree, {})
    assert [point["batch.global_batch_size"] for point in points[1:]] == [10, 20, 20, 40]
    listed = {"points": [{"batch.global_batch_size": accumulated[0]}], "baseline": {}}
    _, point = expand(validate(PointSet, listed), tree, {})
    assert point == {"batch.global_batch_size": 5 * 16}  # world_size is null: the 1,024 devices of the cluster
    shared = {
        "points": [{"batch.global_batch_size": accumulated[0], "parallel.context_parallel_size": 2}],
        "baseline": {},
    }
    _, point = expand(validate(PointSet, shared), tree, {})
    assert point["batch.global_batch_size"] == 5 * 8  # context ranks are none of the replicas


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"axes": {"b": {"low": 0.1, "high": 1.0}}}, "sweep.axes.b"),
        ({"axes": {"b": {"low": 2, "high": 1}}}, "sweep.axes.b"),
        ({"axes": {"b": {"low": 0, "high": 1, "log": True}}}, "sweep.axes.b"),
        ({"axes": {"b": {"low": 0, "high": 1, "step": 2}}}, "sweep.axes.b"),
        ({"axes": {"b": {"low": 0, "high": 9, "step": 2, "num": 3}}}, "sweep.axes.b"),
        ({"axes": {"b": {"low": 0.0, "high": 9.0, "step": 1e-9}}}, "sweep.axes.b"),
        ({"axes": {"b": {"low": 0}}}, "sweep.axes.b"),
        ({"axes": {"b": {"values": [1], "low": 0}}}, "sweep.axes.b"),
        ({"axes": {"b": {"lowest": 0}}}, "sweep.axes.b.lowest"),
        ({"axes": {"b": 3}}, "sweep.axes.b"),
        ({"axes": {"b": "a.x"}}, "sweep.axes.b"),
        ({"axes": {"b": "=a.x +"}}, "sweep.axes.b"),
        ({"axes": {"b": {"values": [1], "when": "open('x')"}}}, "sweep.axes.b"),
        ({"axes": {"c": [1]}}, "sweep.axes"),
        ({"axes": {"a.xx": [1]}}, "sweep.axes"),
        ({"axes": {"a": [1]}}, "sweep.axes"),
        ({"axes": {"cluster": ["a"]}}, "sweep.axes"),
        ({"axes": {"slurm.qos": ["a", "b"]}}, "sweep.axes"),
        ({"zip": [{"slurm.qos": ["a"], "cluster.num_nodes": [1]}]}, "sweep.axes"),
        ({"axes": {"trainer.flags.my-option": [1]}}, "sweep.axes"),
        ({"axes": {"trainer.flags.seeds": [1]}}, "sweep.axes"),
        ({"axes": {"b": [[1, 2], 3]}}, "sweep.axes.b.values.0"),
        ({"axes": {"b": [1, {"c": 3}]}}, "sweep.axes.b.values.1"),
        ({"zip": [{"b": [[1, 2]]}]}, "sweep.zip.0.b.0"),
        ({"axes": {"b": "=a.xx"}}, "sweep.axes.b"),
        ({"axes": {"b": "=a"}}, "sweep.axes.b"),
        ({"axes": {"b": "=1 / (a.y)"}}, "sweep.axes.b"),
        ({"axes": {"b": "=a.x", "a.x": "=b"}}, "sweep.axes"),
        ({"axes": {"b": [1]}, "constraints": ["b < c"]}, "sweep.constraints.0"),
        ({"axes": {"b": [1]}, "constraints": ["b <"]}, "sweep.constraints.0"),
        ({"axes": {"b": [1]}, "constraints": ["word < b"]}, "sweep.constraints"),
        ({"zip": [{"b": [1, 2], "a.x": [1]}]}, "sweep.zip.0"),
        ({"zip": [{"b": [1]}], "axes": {"b": [2]}}, "sweep.zip"),
        ({"axes": {"b": {"low": 1, "high": 20_000}}}, "sweep.axes"),
        ({"axes": {key: {"low": 1, "high": 20_000} for key in ("a.x", "a.y")}}, "sweep.axes"),
    ],
)
def test_a_wrong_axis_names_its_key_its_value_and_what_to_do(blocks: dict[str, Any], message: str) -> None:
    with refused(ConfigError, message) as caught:
        points_of(**blocks)
    assert "\n" not in str(caught.value)
