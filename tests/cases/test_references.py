"""`${...}` follows each point of a sweep, as it does in every job of a Hydra multirun."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.compose.load import compose, compose_tree
from conf.compose.tree import part_at, value_at, with_values
from conf.credentials import HIDDEN, revealed
from conf.errors import ConfigError
from conf.folders import VARIABLE
from conf.overrides import Overrides
from sweeps.points.following import Stages
from sweeps.points.plan import plan_sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.messages import refused

Plan = Callable[..., SweepRecord]

SWEEP = """\
defaults:
  - override /model: tiny
  - override /cluster: local
  - override /trainer: command
training: {num_steps: 3, num_warmup_steps: 1, learning_rate_warmup_steps: 1, MORE}
trainer: {command: ["{python}", t.py, WORD], start: once, environment: {LR: FLAG}}
search: {objective: [loss]}
sweep: {name: mine, question: which, max_trials: 9, published: [], PART}
"""
RATES = "baseline: {}, points: [], axes: {training.learning_rate: [1.0e-3, 1.0e-4]}, proxy: null"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "sweep").mkdir()

    def planned(*overrides: str, proxy: bool = False, **parts: str) -> SweepRecord:
        words = {"MORE": "seed: 1", "WORD": "x", "FLAG": "x", "PART": RATES} | parts
        text = re.sub("MORE|WORD|FLAG|PART", lambda match: words[match[0]], SWEEP)
        text = text if "proxy:" in text else text.replace("question:", "proxy: null, question:")
        (tmp_path / "sweep" / "mine.yaml").write_text(text)
        return plan_sweep(compose(Overrides.parse(["sweep=mine", *overrides])), proxy=proxy, git_sha="x")

    return planned


def rates(record: SweepRecord) -> list[tuple[float, float]]:
    """Of every trial the rate and the least rate."""
    trainings = [trial.planned.training for trial in record.trials]
    return sorted((each.learning_rate, each.min_learning_rate) for each in trainings)


BOTH = [(1e-4, 1e-4), (3e-4, 3e-4), (1e-3, 1e-3)]


@pytest.mark.parametrize(
    "written", ["${training.learning_rate}", "${.learning_rate}", "${oc.select:training.learning_rate}"]
)
def test_a_value_of_the_configuration_follows_the_axis(plan: Plan, written: str) -> None:
    assert rates(plan(MORE=f'min_learning_rate: "{written}"')) == BOTH


def test_an_override_of_the_command_follows_the_axis(plan: Plan) -> None:
    assert rates(plan("training.min_learning_rate=${training.learning_rate}")) == BOTH


def test_words_and_variables_of_a_program_follow_through_another_reference(plan: Plan) -> None:
    record = plan(
        MORE="min_learning_rate: '${.learning_rate}'",
        WORD="'--floor=${training.min_learning_rate}'",
        FLAG="'${oc.env:NOBODY_SETS_IT,none}/${training.seed}/${..command[2]}'",
    )
    programs = [trial.planned.trainer for trial in record.trials]
    assert all(program.environment["LR"].startswith(HIDDEN) for program in programs)
    words = {(program.command[2], revealed(program.environment["LR"], {}, "memory")) for program in programs}
    floors = [f"--floor={rate}" for rate in (1e-3, 1e-4, 3e-4)]
    assert words == {(floor, f"none/1234/{floor}") for floor in floors}


def test_a_text_with_an_escaped_dollar_stays_one(plan: Plan) -> None:
    record = plan(FLAG=r"'\${training.learning_rate}'", MORE="min_learning_rate: '${.learning_rate}'")
    assert {trial.planned.trainer.environment["LR"] for trial in record.trials} == {"${training.learning_rate}"}


def test_a_point_that_states_the_value_itself_follows_nothing(plan: Plan) -> None:
    points = "{training.learning_rate: 1.0e-3, training.min_learning_rate: 1.0e-5}"
    record = plan(
        MORE="min_learning_rate: '${.learning_rate}'",
        PART=f"baseline: {{training.learning_rate: 2.0e-3}}, axes: {{}}, points: [{points}]",
    )
    assert rates(record) == [(1e-3, 1e-5), (2e-3, 2e-3)]


FOLLOWING = "training.min_learning_rate: '${training.learning_rate}'"
ONE = "training.learning_rate: [1.0e-3]"


@pytest.mark.parametrize(
    "part",
    [
        f"axes: {{{ONE}, training.min_learning_rate: ['${{training.learning_rate}}']}}, points: []",
        f"axes: {{{ONE}, {FOLLOWING}}}, points: []",
        f"points: [{{training.learning_rate: 1.0e-3, {FOLLOWING}}}], axes: {{}}",
    ],
)
def test_values_of_axes_points_and_baseline_follow_too(plan: Plan, part: str) -> None:
    assert rates(plan(PART=f"{part}, baseline: {{{FOLLOWING}}}")) == [(3e-4, 3e-4), (1e-3, 1e-3)]


def test_an_expression_over_a_value_that_follows_sees_it_follow(plan: Plan) -> None:
    part = f"baseline: {{}}, points: [], axes: {{{ONE}, training.weight_decay: =training.min_learning_rate}}"
    record = plan(MORE="min_learning_rate: '${.learning_rate}'", PART=part)
    assert 1e-3 in {trial.planned.training.weight_decay for trial in record.trials}


def test_a_mixed_text_among_points_is_refused_with_the_expression(plan: Plan) -> None:
    part = "baseline: {}, points: [], axes: {training.seed: [1, 2], trainer.environment.LR: ['run-${training.seed}']}"
    with refused(ConfigError, "sweep.axes.trainer.environment.LR.0"):
        plan(PART=part)


def test_the_stand_in_follows_its_own_points(plan: Plan) -> None:
    part = (
        "baseline: {}, points: [], axes: {}, proxy: {overrides: [model=tiny, cluster=local, precision=fp32, "
        "'training.min_learning_rate=${training.learning_rate}'], time_limit_minutes: 5, points: [], "
        "baseline: {training.learning_rate: 2.0e-3}, axes: {training.learning_rate: [1.0e-3]}}"
    )
    assert rates(plan(PART=part, proxy=True)) == [(1e-3, 1e-3), (2e-3, 2e-3)]


def test_a_stage_follows_the_point_before_it(plan: Plan) -> None:
    stages = "stages: {longer: {after: train, overrides: ['training.min_learning_rate=${training.learning_rate}']}}"
    record = plan(PART=f"{RATES}, {stages}")
    composition = compose(Overrides.parse(["sweep=mine"]))
    drafts = [
        Stages(record.spec.stages, composition).draft("longer", trial, SweepFolder("x")) for trial in record.trials
    ]
    found = {(each.planned.training.learning_rate, each.planned.training.min_learning_rate) for each in drafts}
    assert found == {*BOTH}


def test_a_stage_whose_command_would_stay_behind_is_told_of_braces(plan: Plan) -> None:
    stages = "stages: {score: {after: train, command: [score.py, '--lr=${training.learning_rate}']}}"
    with refused(ConfigError, "sweep.stages.score.command.1"):
        plan(PART=f"{RATES}, {stages}")


def test_heads_that_a_model_gives_to_each_query_follow_their_number() -> None:
    tree = compose_tree(["model=tiny"])
    assert value_at(with_values(tree, {"model.num_attention_heads": 8}), "model.num_query_groups") == 8
    assert value_at(tree, "model.num_query_groups") == 4
    again = pickle.loads(pickle.dumps(with_values(tree, {"training.seed": 5})))
    assert part_at(with_values(again, {"model.num_attention_heads": 8}), "model.num_query_groups") == 8


def test_a_path_with_a_value_of_the_point_in_it_follows_as_in_a_multirun(plan: Plan) -> None:
    part = "baseline: {}, points: [], axes: {training.seed: [1, 2]}"
    record = plan("checkpoint.load=/kept/${training.seed}/last", PART=part)
    loaded = {trial.planned.checkpoint.load for trial in record.trials}
    assert {f"/kept/{at}/last" for at in (1, 2)} <= loaded
