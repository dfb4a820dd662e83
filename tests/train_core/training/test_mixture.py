"""A training on a mixture: on over a stop in any layout, with what was seen of each set and the losses of others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from tests.train_core.checkpoints.test_checkpoint import layout
from tests.train_core.conftest import ExperimentOf, TrialOf, Worlds
from tests.train_core.training import layouts
from tests.train_core.training.layouts import SAVING
from train_core.job.trial import run_trial_here
from train_core.process.stop import never
from train_core.process.world import World
from train_core.training.train import train
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import StepMetrics

TEXTS = {"web": "the quick brown fox\n" * 60, "code": "x = [1, 2, 3]  # of it\n" * 30, "books": "Once upon.\n" * 90}
CURVE = layouts.CURVE | {"training.evaluate_every": 3, "training.num_evaluation_batches": 2}
BEFORE = layout(2, 1, 2, zero_stage=1)
AFTER = [BEFORE, layout(1, 1, 1), layout(1, 2, 2, zero_stage=2), layout(1, 1, 4, zero_stage=3)]


def sets_in(folder: Path) -> dict[str, Any]:
    """Two sets to mix, 3 to 1, and two that are held out."""
    for name, text in TEXTS.items():
        (folder / f"{name}.txt").write_text(text)
    (folder / "poems.txt").write_text("Roses are red.\n" * 90)
    mixture = {
        name: {"path": str(folder / f"{name}.txt"), "weight": weight} for name, weight in (("web", 3), ("code", 1))
    }
    held_out = {name: {"path": str(folder / f"{name}.txt")} for name in ("poems", "books")}
    return CURVE | {"data.mixture": mixture, "data.held_out": held_out}


def steps_of(world: World, experiment: Experiment, folder: Path, tokens: Path) -> list[StepMetrics]:
    steps = list[StepMetrics]()
    train(experiment, world, tokens, steps.append, never, TrialFolder(folder))
    return steps


@pytest.fixture(scope="module")
def unbroken(worlds: Worlds, experiment_of: ExperimentOf, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Six steps in one layout, which leave a checkpoint of step 3: their folder, configuration and metrics."""
    folder = tmp_path_factory.mktemp("unbroken")
    values = sets_in(folder)
    steps = worlds(4).run(steps_of, experiment_of(values | SAVING | BEFORE), folder, folder / "tokens")[0]
    return folder, values, steps


def test_the_tokens_and_epochs_of_each_set_and_the_losses_of_others_are_told(unbroken: Any) -> None:
    _, _, steps = unbroken
    tokens = [(step.figures["data/code/tokens"], step.figures["data/web/tokens"]) for step in steps]
    assert tokens == [(2 * 16 * n, 6 * 16 * n) for n in range(1, 7)]
    assert steps[-1].figures["data/web/epochs"] == 36 / ((len(TEXTS["web"]) - 1) // 16)
    assert [sorted(name for name in step.figures if name.startswith("eval/")) for step in steps] == [
        ["eval/books/loss", "eval/poems/loss"] if step.step % 3 == 0 else [] for step in steps
    ]
    books, poems = (steps[-1].figures[f"eval/{name}/loss"] for name in ("books", "poems"))
    assert steps[-1].held_out_loss == pytest.approx((books + poems) / 2)
    assert steps[-1].held_out_in_words == f"held out {(books + poems) / 2:.4f} (books {books:.4f}, poems {poems:.4f})"


@pytest.mark.slow
@pytest.mark.parametrize("after", AFTER, ids=["same", "alone", "pp2-dp2-zero2", "dp4-zero3"])
def test_it_goes_on_in_any_layout_as_if_it_had_never_stopped(
    after: Any, unbroken: Any, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    folder, values, expected = unbroken
    load = {"checkpoint.load": str(folder / "checkpoints/step-000003"), "checkpoint.resume": True}
    experiment = experiment_of(values | load | after)
    steps = worlds(experiment.parallel.world_size).run(steps_of, experiment, tmp_path, folder / "tokens")[0]
    for seen, wanted in zip(steps, expected[3:], strict=True):
        assert seen.figures.keys() == wanted.figures.keys()
        of_data = {name: value for name, value in wanted.figures.items() if name.startswith("data/")}
        assert of_data.items() <= seen.figures.items()
        if after is BEFORE:
            assert (seen.loss, seen.held_out_loss, seen.figures) == (wanted.loss, wanted.held_out_loss, wanted.figures)
        np.testing.assert_allclose(seen.loss, wanted.loss, rtol=1e-5)
        np.testing.assert_allclose(list(seen.figures.values()), list(wanted.figures.values()), rtol=1e-5)


def refusal_of(world: World, experiment: Experiment, folder: Path, tokens: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        train(experiment, world, tokens, trial=TrialFolder(folder))
    return str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["weight", "set less", "set more", "path"])
def test_another_mixture_is_not_gone_on_with(
    change: str, unbroken: Any, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    folder, values, _ = unbroken
    mixture = {name: dict(each) for name, each in values["data.mixture"].items()}
    shutil.copy(folder / "web.txt", tmp_path / "elsewhere.txt")
    match change:
        case "weight":
            mixture["code"]["weight"] = 2
            message = "data.mixture.code.weight = 2.0: is not the 1.0 of the training in the checkpoint"
        case "set less":
            del mixture["code"]
            message = "data.mixture.code.weight = None: is not the 1.0 of the training in the checkpoint"
        case "set more":
            mixture["new"] = mixture["web"]
            message = "data.mixture = ['code', 'new', 'web']: holds other text than when"
        case _:
            mixture["web"]["path"] = str(tmp_path / "elsewhere.txt")
            message = ""
    load = {"checkpoint.load": str(folder / "checkpoints/step-000003"), "checkpoint.resume": True}
    experiment = experiment_of(values | load | {"data.mixture": mixture})
    if message:
        assert worlds(1).run(refusal_of, experiment, tmp_path, folder / "tokens")[0].startswith(message)
    else:  # the same text may lie elsewhere
        assert len(worlds(1).run(steps_of, experiment, tmp_path, folder / "tokens")[0]) == 3


@pytest.mark.slow
def test_the_loss_of_a_set_is_that_of_the_same_text_as_a_part_that_is_held_out(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    text = "".join(chr(33 + number % 90) for number in range(16 * 40 + 1))
    (tmp_path / "whole.txt").write_text(text)
    (tmp_path / "end.txt").write_text(text[16 * 20 :])
    held_out = {"end": {"path": str(tmp_path / "end.txt")}}
    values = CURVE | {
        "data.path": str(tmp_path / "whole.txt"),
        "data.held_out_fraction": 0.5,
        "data.held_out": held_out,
    }
    for after in (layout(1, 1, 1), layout(1, 2, 2, zero_stage=3) | {"parallel.zero_stage": 1}):
        experiment = experiment_of(values | after)
        steps = worlds(experiment.parallel.world_size).run(steps_of, experiment, tmp_path, tmp_path / "tokens")[0]
        assert steps[2].figures["eval/end/loss"] == steps[2].held_out_loss


@pytest.mark.slow
def test_a_trial_keeps_its_last_figures_in_the_measurement(trial_of: TrialOf, tmp_path: Path) -> None:
    trial = trial_of(sets_in(tmp_path) | SAVING)
    measurement = run_trial_here(trial.path)
    assert measurement.metrics == trial.read_metrics()[-1].figures
    assert measurement.mixture_in_words.startswith("seen: code 25.0% (0.279 epochs), web 75.0% (0.486 epochs)")
    trial.measurement.unlink()
    assert run_trial_here(trial.path).metrics == measurement.metrics, "all steps had been done before"
