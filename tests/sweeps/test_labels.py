"""A trial is called by what sets it apart from the others of its sweep."""

from __future__ import annotations

import time
from copy import deepcopy

import pytest

from conf.types.schema import Value
from sweeps.labels import Labels, _distinct_texts, name_of_point
from sweeps.points.plan import trial_of
from tests.composed import compose_tree
from tests.conftest import BuildRecord

LR = "training.learning_rate"
GB = "batch.global_batch_size"


def labels(*points: dict[str, Value], overrides: tuple[str, ...] = ()) -> list[str]:
    """The labels of a sweep of these points."""
    tree = compose_tree(["sweep=smoke", *overrides])
    trials = [trial_of(tree, point, "") for point in points]
    found = Labels([(trial.point, trial.experiment) for trial in trials])
    return [found.of(trial.point, trial.experiment) for trial in trials]


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([{LR: 3.4e-3}, {LR: 1e-2}, {}], ["lr=3.4e-3", "lr=0.01", "lr=3e-4"]),
        ([{"training.seed": 1}, {"training.seed": 2}], ["seed=1", "seed=2"]),
        ([{LR: 1e-3, GB: 8}, {LR: 1e-3, GB: 16}, {LR: 2e-3, GB: 8}], ["gb8 lr=1e-3", "gb16 lr=1e-3", "gb8 lr=2e-3"]),
        ([{"training.schedule": "wsd"}, {}], ["lr-schedule=wsd", "lr-schedule=cosine"]),
        ([{LR: 1e-3}, {LR: 1.0004e-3}], ["lr=0.001", "lr=0.0010004"]),
        ([{"model.num_layers": 2}, {"model.num_layers": 4}], ["layers=2", "layers=4"]),
    ],
)
def test_a_label_says_what_varies_and_nothing_else(points: list[dict[str, Value]], expected: list[str]) -> None:
    assert labels(*points) == expected


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (["old.py --lr 1", "new.py --lr 1"], ["command=old.py", "command=new.py"]),
        (["train.py", "train.py --fast"], ["command=#1", "command=#2"]),
        (["train.py", f"{'long' * 20}.py"], ["command=#1", "command=#2"]),
    ],
)
def test_a_list_is_called_by_the_words_that_differ_or_its_number(commands: list[str], expected: list[str]) -> None:
    words = [f"trainer.command=[{','.join(command.split())}]" for command in commands]
    trials = [trial_of(compose_tree(["sweep=smoke", "trainer=command", word]), {}, "") for word in words]
    found = Labels([(trial.point, trial.experiment) for trial in trials])
    assert [found.of(trial.point, trial.experiment) for trial in trials] == expected


def test_the_weight_of_a_set_in_a_mixture_is_told() -> None:
    mixture = "data.mixture={web:{path:a,weight:1},code:{path:b,weight:1}}"
    weights: list[dict[str, Value]] = [{"data.mixture.web.weight": weight} for weight in (1.0, 2.5)]
    assert labels(*weights, overrides=("data=text", mixture)) == ["weight=1", "weight=2.5"]


def test_how_a_log_is_read_is_no_property_of_a_point() -> None:
    tree = compose_tree(["sweep=smoke", "trainer=command", "trainer.command=[train.py]"])
    trees = [deepcopy(tree) for _ in range(3)]
    trees[1]["trainer"]["log"]["patterns"]["loss"] = r"step \d+/\d+ lm loss: (?P<loss>\S+)"
    trees[2]["trainer"]["log"] |= {"decimal": "comma", "first_step": 0, "done": "ended"}
    trials = [trial_of(tree, {}, "") for tree in trees]
    found = Labels([(trial.point, trial.experiment) for trial in trials])
    assert {found.of(trial.point, trial.experiment) for trial in trials} == {"tp1-pp1-dp1-mb1-gb8"}
    assert len({trial.experiment.fingerprint for trial in trials if trial.experiment}) == 1
    assert len({trial.trial_id for trial in trials}) == 1


def test_a_key_behind_a_name_with_a_dot_is_told_by_its_values() -> None:
    tree = compose_tree(["sweep=smoke", "trainer=command", "trainer.command=[train.py]"])
    tree["trainer"] |= {"files": {"c.json": {"optim": {"lr": 3}}}}
    points: list[dict[str, Value]] = [{"trainer.files.c.json.optim.lr": value} for value in (1, 2)]
    trials = [trial_of(tree, point, "") for point in points]
    found = Labels([(trial.point, trial.experiment) for trial in trials])
    assert [found.of(trial.point, trial.experiment) for trial in trials] == ["lr=1", "lr=2"]


def test_where_layouts_vary_too_the_layout_comes_first() -> None:
    two = {"parallel.world_size": 2, "parallel.pipeline_parallel_size": 2}
    assert labels({LR: 1e-3}, {LR: 1e-3, **two}, {LR: 2e-3}) == [
        "tp1-pp1-dp1-mb1-gb8 lr=1e-3",
        "tp1-pp2-dp1-mb1-gb8 lr=1e-3",
        "tp1-pp1-dp1-mb1-gb8 lr=2e-3",
    ]


def test_where_nothing_or_the_layout_alone_varies_it_is_the_layout() -> None:
    assert labels({}) == ["tp1-pp1-dp1-mb1-gb8"]
    assert labels({}, {GB: 16}) == ["tp1-pp1-dp1-mb1-gb8", "tp1-pp1-dp1-mb1-gb16"]


def test_what_follows_from_another_key_is_not_said() -> None:
    """At equal tokens a larger batch takes fewer steps, which the batch says already."""
    one: dict[str, Value] = {LR: 1e-3, GB: 8, "training.num_steps": 8}
    other: dict[str, Value] = {LR: 2e-3, GB: 16, "training.num_steps": 4}
    tree = compose_tree(["sweep=smoke"])
    trials = [trial_of(tree, point, "") for point in (one, other)]
    said = [{key: point[key] for key in (LR, GB)} for point in (one, other)]
    unsaid = [(point, trial.experiment) for point, trial in zip(said, trials, strict=True)]
    assert Labels(unsaid).names == {LR: "lr"}


def test_a_configuration_that_changed_between_commands_is_told_apart() -> None:
    tree, later = compose_tree(["sweep=smoke"]), compose_tree(["sweep=smoke", "training.num_steps=9"])
    trials = [trial_of(each, {}, "") for each in (tree, later)]
    found = Labels([(trial.point, trial.experiment) for trial in trials])
    assert [found.of(trial.point, trial.experiment) for trial in trials] == ["steps=4", "steps=9"]


def test_a_number_that_is_rounded_does_not_become_another() -> None:
    beta = "training.adam_beta2"
    assert labels({beta: 0.999}, {beta: 0.9995}) == ["adam_beta2=0.999", "adam_beta2=0.9995"]


def test_the_first_trial_of_a_search_is_called_as_it_will_be_beside_the_second() -> None:
    assert labels({LR: 1e-3}) == ["lr=1e-3"]
    assert labels({LR: 1e-3, GB: 8}) == ["tp1-pp1-dp1-mb1-gb8 lr=1e-3"]


def test_a_point_that_cannot_exist_is_called_like_the_others() -> None:
    impossible: dict[str, Value] = {LR: 2e-3, "parallel.tensor_parallel_size": 3}
    assert labels({LR: 1e-3}, impossible) == ["lr=1e-3", "tp3 lr=2e-3"]


def test_a_record_with_other_trials_calls_them_anew(build_record: BuildRecord) -> None:
    """A search adds trials one by one to a record whose labels were already asked for."""
    tree = compose_tree(["sweep=smoke"])
    trials = tuple(trial_of(tree, {LR: value}, "") for value in (1e-3, 2e-3))
    record = build_record([{LR: 1e-3}], [])
    before = [record.label_of(trial) for trial in record.trials]
    grown = record.model_copy(update={"trials": trials})
    assert [grown.label_of(trial) for trial in trials] == ["lr=1e-3", "lr=2e-3"]
    assert [record.label_of(trial) for trial in record.trials] == before


def test_a_folder_s_name_holds_only_what_a_folder_s_name_may() -> None:
    name = name_of_point({"data.path": "/a/b c:d", "trainer.flags.note": "é/" + 300 * "x"})
    assert name.startswith("path=b_c_d-note=")
    assert len(name) <= 120


def test_ten_thousand_values_are_told_apart_without_comparing_each_with_each() -> None:
    began = time.process_time()
    assert len(set(_distinct_texts(range(20_000)).values())) == 20_000
    assert time.process_time() - began < 1.0
