"""The held-out loss: the same in every layout, and without a trace in the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.plan.experiment import Experiment
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.process.world import World
from train_core.training.train import train
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import StepMetrics

EVALUATED = {
    "model.num_layers": 4,
    "data.held_out_fraction": 0.1,
    "training.evaluate_every": 2,
    "training.num_evaluation_batches": 3,
    "batch.global_batch_size": 4,
    "batch.micro_batch_size": 1,
}


def steps_of(world: World, experiment: Experiment, cache: Path) -> list[StepMetrics]:
    steps: list[StepMetrics] = []
    train(experiment, world, cache, steps.append, trial=TrialFolder(cache))
    return steps


@pytest.fixture(scope="module")
def on_one_rank(experiment_of: ExperimentOf, worlds: Worlds, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The held-out loss after each step; none after most."""
    steps, *_ = worlds(1).run(steps_of, experiment_of(EVALUATED), tmp_path_factory.mktemp("alone"))
    return [step.held_out_loss for step in steps]


@pytest.mark.slow
def test_the_held_out_loss_falls(on_one_rank: Any) -> None:
    assert [loss is None for loss in on_one_rank] == [True, False, True, False, True]
    assert on_one_rank[1] == pytest.approx(np.log(256), rel=0.1)
    assert on_one_rank[3] < on_one_rank[1]


LAYOUTS: list[dict[str, Any]] = [
    {"parallel.pipeline_parallel_size": 2, "parallel.schedule": "interleaved", "parallel.virtual_pipeline_size": 2},
    {"parallel.pipeline_parallel_size": 2, "parallel.tensor_parallel_size": 2, "parallel.sequence_parallel": True},
    {"parallel.pipeline_parallel_size": 4, "parallel.schedule": "zero-bubble", "parallel.recompute": "full"},
]


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gets_the_held_out_loss_of_one_rank(
    layout: Any, on_one_rank: Any, experiment_of: ExperimentOf, worlds: Worlds, tmp_path: Path
) -> None:
    experiment = experiment_of(EVALUATED | {"parallel.world_size": 4} | layout)
    told, *silent = worlds(4).run(steps_of, experiment, tmp_path)
    assert not any(silent)
    seen = [step.held_out_loss for step in told if step.held_out_loss]
    assert seen == pytest.approx([loss for loss in on_one_rank if loss], rel=1e-5)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("layout", [{}, {"parallel.world_size": 2, "parallel.zero_stage": 3}])
def test_evaluating_leaves_the_training_as_it_is(
    layout: Any, experiment_of: ExperimentOf, worlds: Worlds, tmp_path: Path
) -> None:
    """Also where a checkpoint is written right after it."""
    values = EVALUATED | layout
    plain = {key: value for key, value in values.items() if not key.startswith("training")}
    world = worlds(layout.get("parallel.world_size", 1))
    evaluated, *_ = world.run(steps_of, experiment_of(values | {"checkpoint.every_steps": 2}), tmp_path)
    never, *_ = world.run(steps_of, experiment_of(plain), tmp_path)
    assert [step.loss for step in evaluated] == [step.loss for step in never]
