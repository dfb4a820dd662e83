"""The rate of each step of every schedule, and trainings that go on with another one."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from conf.errors import ConfigError, InfeasiblePlan
from conf.plan.experiment import Experiment
from tests.messages import refused
from tests.train_core.conftest import ALONE, ExperimentOf, Worlds
from train_core.job.training_folder import extension_lines
from train_core.optimizers.learning_rate import learning_rate_at
from train_core.process.stop import never
from train_core.process.world import World
from train_core.training.train import train
from train_core.trial.folder import TrialFolder

PLAN = {
    "training.num_steps": 10,
    "training.learning_rate_warmup_steps": 4,
    "training.learning_rate": 1.0,
    "training.min_learning_rate": 0.1,
}
RATES = {
    "constant": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    "linear": [0.85, 0.7, 0.55, 0.4, 0.25, 0.1],
    "cosine": [0.9397114, 0.775, 0.55, 0.325, 0.1602886, 0.1],
    "wsd": [1.0, 1.0, 1.0, 0.7, 0.4, 0.1],
    "inverse-square-root": [0.8944272, 0.8164966, 0.7559289, 0.7071068, 0.6666667, 0.6324555],
}


@pytest.mark.parametrize("schedule", RATES)
def test_the_rate_warms_up_and_then_has_the_shape_of_its_schedule(schedule: str, experiment_of: ExperimentOf) -> None:
    decay = {"training.learning_rate_decay_steps": 3} if schedule == "wsd" else {}
    plan = experiment_of(PLAN | decay | {"training.schedule": schedule}).training
    assert [learning_rate_at(step, plan) for step in range(1, 5)] == [0.25, 0.5, 0.75, 1.0]
    assert [learning_rate_at(step, plan) for step in range(5, 11)] == pytest.approx(RATES[schedule], rel=1e-6)


def test_an_inverse_square_root_stops_at_the_least_rate_and_needs_no_warm_up(experiment_of: ExperimentOf) -> None:
    values = {"training.schedule": "inverse-square-root", "training.learning_rate_warmup_steps": 0}
    plan = experiment_of(PLAN | values | {"training.min_learning_rate": 0.5}).training
    assert [learning_rate_at(step, plan) for step in (1, 4, 9)] == [1.0, 0.5, 0.5]


def test_a_decay_of_no_stated_length_takes_a_tenth_of_the_steps(experiment_of: ExperimentOf) -> None:
    plan = experiment_of(PLAN | {"training.schedule": "wsd", "training.num_steps": 40}).training
    rates = [learning_rate_at(step, plan) for step in (36, 37, 40)]
    assert rates == pytest.approx([1.0, 0.775, 0.1])


def test_a_decay_that_has_no_room_or_no_schedule_is_refused(experiment_of: ExperimentOf) -> None:
    key = "training.learning_rate_decay_steps"
    with refused(InfeasiblePlan, "training.learning_rate_decay_steps"):
        experiment_of(PLAN | {"training.schedule": "wsd", key: 7})
    with refused(ConfigError, "training.learning_rate_decay_steps"):
        experiment_of(PLAN | {key: 3})


def test_only_a_schedule_that_knew_of_its_end_is_said_to_have_fallen(experiment_of: ExperimentOf) -> None:
    for schedule, is_said in {"cosine": True, "constant": False, "wsd": False, "inverse-square-root": False}.items():
        plan = experiment_of(PLAN | {"training.schedule": schedule, "training.num_steps": 20}).training
        assert bool(extension_lines([(10, 8)], plan)) is is_said, schedule
    wsd = experiment_of(PLAN | {"training.schedule": "wsd", "training.num_steps": 20}).training
    assert extension_lines([(10, 10)], wsd), "it had begun to fall"


def losses_of(world: World, experiment: Experiment, folder: Path) -> tuple[float, ...]:
    trial = TrialFolder(folder)
    return train(experiment, replace(world), folder / "tokens", trial.append_metrics, never, trial).losses


def test_the_decay_of_wsd_follows_from_a_checkpoint_of_its_stable_part(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One long trunk, and from its step 4 a decay of two steps: the losses of a training of six steps."""
    small = {"model.num_layers": 1, "training.num_warmup_steps": 0, "checkpoint.asynchronous": False}
    wsd = small | {"training.schedule": "wsd", "training.learning_rate_decay_steps": 2, "training.num_steps": 6}
    whole = worlds(1).run(losses_of, experiment_of(wsd), tmp_path / "whole")[0]
    trunk = small | {"training.schedule": "constant", "training.num_steps": 9, "checkpoint.every_steps": 4}
    worlds(1).run(losses_of, experiment_of(trunk | {"checkpoint.keep_last": 9}), tmp_path / "trunk")
    start = {"checkpoint.load": str(tmp_path / "trunk/checkpoints/step-000004"), "checkpoint.resume": True}
    with caplog.at_level(logging.WARNING):
        decayed = losses_of(ALONE, experiment_of(wsd | start), tmp_path / "decay")
    assert decayed == whole[4:]
    assert "training.schedule = wsd, which was constant" in caplog.text
    assert "training.learning_rate_decay_steps = 2, which was null" in caplog.text
