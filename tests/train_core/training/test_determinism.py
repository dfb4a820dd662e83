"""A training that asks for deterministic kernels gets them, while it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import deterministic

from conf.plan.experiment import Experiment
from tests.composed import load
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.process.gpu_settings import CUBLAS_WORKSPACE, same_bits
from train_core.process.world import World
from train_core.training.train import train
from train_core.trial.measurement import StepMetrics


def settings_of_torch() -> tuple[bool, bool, str | None]:
    """Whether kernels are deterministic, whether new memory is filled, and how cuBLAS divides its own."""
    memory: Any = deterministic
    fills = bool(memory.fill_uninitialized_memory)
    return torch.are_deterministic_algorithms_enabled(), fills, os.environ.get(CUBLAS_WORKSPACE)


def losses_and_settings(
    world: World, experiment: Experiment, cache: Path
) -> tuple[list[float], list[tuple[bool, bool, str | None]]]:
    """Of every step the loss and the settings that it had; and the settings when the training is over."""
    losses, settings = list[float](), list[tuple[bool, bool, str | None]]()

    def noted(metrics: StepMetrics) -> None:
        losses.append(metrics.loss)
        settings.append(settings_of_torch())

    train(experiment, world, cache, noted)
    return losses, [*settings, settings_of_torch()]


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_every_step_has_deterministic_kernels_and_what_follows_has_not(
    dropout: float, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    values = {"training.num_steps": 2, "training.dropout": dropout, "model.num_layers": 1}
    ((plain, _),) = worlds(1).run(losses_and_settings, experiment_of(values), tmp_path)
    asked = experiment_of(values | {"training.deterministic": True})
    ((losses, (*during, after)),) = worlds(1).run(losses_and_settings, asked, tmp_path)
    assert during == [(True, False, ":4096:8")] * 2
    assert after[:2] == (False, True)
    assert losses == plain, "a CPU computes the same without"


def test_a_workspace_of_cublas_that_a_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUBLAS_WORKSPACE, ":16:8")
    with same_bits(True):
        assert settings_of_torch() == (True, False, ":16:8")


def test_asking_for_it_is_another_experiment() -> None:
    """Not asking is none: old folders do not name it, as `test_old_folders` holds."""
    assert load(["training.deterministic=true"]).experiment().fingerprint != load([]).experiment().fingerprint
