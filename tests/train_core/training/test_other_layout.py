"""A training that goes on in another layout has the losses and learning rates of one that never stopped."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from tests.messages import refused
from tests.train_core.checkpoints.test_checkpoint import layout
from tests.train_core.conftest import ExperimentOf, TrialOf, Worlds
from tests.train_core.training import layouts
from tests.train_core.training.layouts import SAVING
from train_core.checkpoints.checkpoint_folder import path_of
from train_core.job.trial import run_trial_here
from train_core.process.stop import never
from train_core.process.world import World
from train_core.training.train import train
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Outcome, StepMetrics

CURVE = layouts.CURVE | {"training.dropout": 0.1}
BEFORE = layout(2, 1, 2, zero_stage=1)
AFTER = [
    layout(1, 2, 1),
    layout(1, 1, 4, zero_stage=3),
    layout(1, 2, 2, zero_stage=2, schedule="interleaved", virtual_pipeline_size=2),
]
STEP_3 = "checkpoints/step-000003"


def steps_of(world: World, experiment: Experiment, folder: Path, tokens: Path) -> tuple[list[StepMetrics], Any]:
    """Train in a folder; what the steps that were done there said, on rank 0, and the measurement."""
    steps = list[StepMetrics]()
    performance = train(experiment, world, tokens, steps.append, never, TrialFolder(folder))
    return steps, performance


@pytest.fixture(scope="module")
def unbroken(worlds: Worlds, experiment_of: ExperimentOf, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Six steps in one layout, which leaves a checkpoint of step 3; its folder and steps."""
    folder = tmp_path_factory.mktemp("unbroken")
    steps, _ = worlds(4).run(steps_of, experiment_of(CURVE | SAVING | BEFORE), folder, folder / "tokens")[0]
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    return folder, steps


def resumed(folder: Path, values: Any = None) -> dict[str, Any]:
    load = {"checkpoint.load": str(folder / STEP_3), "checkpoint.resume": True}
    return CURVE | load | (values or {})


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("after", AFTER, ids=["pp2", "dp4-zero3", "pp2-dp2-zero2"])
def test_a_training_goes_on_in_another_layout_with_the_curve_of_an_unbroken_one(
    after: Any, unbroken: Any, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    folder, expected = unbroken
    experiment = experiment_of(resumed(folder, after))
    world = worlds(experiment.parallel.world_size)
    steps, performance = world.run(steps_of, experiment, tmp_path, folder / "tokens")[0]
    assert [step.step for step in steps] == [4, 5, 6]
    assert [step.learning_rate for step in steps] == [step.learning_rate for step in expected[3:]]
    for name in ("loss", "gradient_norm"):
        seen, wanted = ([getattr(step, name) for step in some] for some in (steps, expected[3:]))
        np.testing.assert_allclose(seen, wanted, rtol=1e-5, err_msg=name)
    assert [step.warmup for step in steps] == [True, False, False], "new processes warm up"
    assert (performance.recorded_steps, performance.num_timed_steps) == ([4, 5, 6], 2)


OF_GPT_OSS: dict[str, Any] = CURVE | {
    "training.dropout": 0.0,
    "training.z_loss": 1e-3,
    "model.family": "llama",
    "model.gated_mlp": True,
    "model.qkv_bias": True,
    "model.attention_window": {"size": 5, "full_every": 2},
    "model.parts": ["sinks", "output_bias", "mlp_bias", "router_bias", "capped_activation"],
    "model.experts": {"num_experts": 4, "top_k": 2, "ffn_hidden_size": 24},
}


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "after"),
    [
        (OF_GPT_OSS, layout(1, 2, 1, context_parallel_size=2)),
        (
            OF_GPT_OSS | {"model.experts": None, "model.parts": ["sinks", "wide_qk_norm", "norms_behind"]},
            layout(2, 1, 1),
        ),
    ],
    ids=["experts with biases", "norms behind"],
)
def test_windows_sinks_and_a_z_loss_go_on_in_another_layout(
    kind: Any, after: Any, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    folder, before = (
        tmp_path / "before",
        layout(1, 1, 2, zero_stage=1, expert_parallel_size=2 if kind["model.experts"] else 1),
    )
    expected, _ = worlds(2).run(steps_of, experiment_of(kind | SAVING | before), folder, tmp_path / "tokens")[0]
    load = {"checkpoint.load": str(folder / STEP_3), "checkpoint.resume": True}
    experiment = experiment_of(kind | load | after)
    world = worlds(experiment.parallel.world_size)
    steps, _ = world.run(steps_of, experiment, tmp_path / "after", tmp_path / "tokens")[0]
    assert [step.step for step in steps] == [4, 5, 6]
    for name in ("loss", "gradient_norm"):
        seen, wanted = ([getattr(step, name) for step in some] for some in (steps, expected[3:]))
        np.testing.assert_allclose(seen, wanted, rtol=1e-5, err_msg=name)


@pytest.mark.thorough  # than test_resume
@pytest.mark.slow
def test_it_goes_on_from_its_own_checkpoints_once_it_has_some(
    unbroken: Any, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    folder, expected = unbroken
    experiment = experiment_of(resumed(folder, layout(1, 2, 1) | {"checkpoint.every_steps": 5}))
    worlds(2).run(steps_of, experiment, tmp_path, folder / "tokens")
    path_of(tmp_path / "checkpoints", 6).rename(tmp_path / "checkpoints" / "lost")
    ((step,), _), _ = worlds(2).run(steps_of, experiment, tmp_path, folder / "tokens")
    assert (step.step, step.learning_rate) == (6, expected[5].learning_rate)
    np.testing.assert_allclose(step.loss, expected[5].loss, rtol=1e-5)


@pytest.mark.slow
def test_a_damaged_checkpoint_of_a_folder_is_passed_over_for_the_one_before_it(
    unbroken: Any, trial_of: TrialOf, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, expected = unbroken
    copied = tmp_path / "copied"
    shutil.copytree(folder / "checkpoints", copied)
    file = path_of(copied, 6) / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    trial = trial_of(resumed(folder, {"checkpoint.load": str(copied), "training.num_steps": 7}))
    assert run_trial_here(trial.path).outcome is Outcome.COMPLETED
    assert [metrics.step for metrics in trial.read_metrics()] == [4, 5, 6, 7]
    np.testing.assert_allclose(trial.read_metrics()[0].loss, expected[3].loss, rtol=1e-5)
    told = capsys.readouterr().err
    assert f"checkpoint {file.parent} has a {file.name} that is not as it was written" in told
    assert told.count("going on after step") == 1
    assert f"going on after step 3 of {path_of(copied, 3)} with training.num_steps = 7, which was 6\n" in told


@pytest.mark.slow
def test_without_resume_it_begins_with_step_1_of_its_own_schedule(
    unbroken: Any, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    folder, _ = unbroken
    experiment = experiment_of(resumed(folder, {"checkpoint.resume": False}))
    steps, _ = worlds(1).run(steps_of, experiment, tmp_path, folder / "tokens")[0]
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]


def told(world: World, experiment: Experiment, folder: Path, tokens: Path) -> str:
    """The refusal of a training."""
    with pytest.raises(ConfigError) as caught:
        train(experiment, world, tokens, trial=TrialFolder(folder))
    return str(caught.value)


AT = r"the training in the checkpoint \S+/step-000003"
ELSE = r"or use checkpoint\.resume=false to begin with step 1\.$"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"model.num_layers": 5}, r"^model\.num_layers = 5: is not the 4 of the model in the checkpoint "),
        (
            {"batch.global_batch_size": 32},
            rf"^batch\.global_batch_size = 32: is not the 8 of {AT}\. Use batch\.global_batch_size=8, {ELSE}",
        ),
        ({"training.seed": 7}, rf"^training\.seed = 7: is not the 1234 of {AT}\. Use training\.seed=1234, {ELSE}"),
        (
            {"data.max_bytes": 90_000},
            rf"^data\.max_bytes = 90000: is not the 100000 of {AT}\. Use data\.max_bytes=100000, {ELSE}",
        ),
        (
            {"data.source": "synthetic"},
            rf"^data\.source = 'synthetic': is not the text of {AT}\. Use data\.source=text",
        ),
        (
            {"training.num_steps": 3},
            r"^training\.num_steps = 3: leaves none to do after step 3 of the checkpoint \S+/step-000003\. Give more",
        ),
    ],
)
def test_another_model_batch_or_data_is_refused_with_the_value_that_differs(
    values: Any, problem: str, unbroken: Any, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    folder, _ = unbroken
    (refusal,) = worlds(1).run(told, experiment_of(resumed(folder, values)), tmp_path, folder / "tokens")
    assert re.search(problem, refusal), refusal


@pytest.mark.slow
def test_a_schedule_that_differs_is_taken_and_said(
    unbroken: Any, trial_of: TrialOf, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = unbroken
    trial = trial_of(resumed(folder, {"training.num_steps": 5, "training.clip_gradient_norm": None}))
    measurement = run_trial_here(trial.path)
    assert measurement.outcome is Outcome.COMPLETED, measurement.cause
    changes = "training.num_steps = 5, which was 6, training.clip_gradient_norm = null, which was 1.0"
    assert capsys.readouterr().err == f"going on after step 3 of {folder / STEP_3} with {changes}\n"


@pytest.mark.slow
def test_nothing_to_resume_is_refused(experiment_of: ExperimentOf) -> None:
    with refused(ConfigError, "checkpoint.resume"):
        experiment_of({"checkpoint.resume": True})
