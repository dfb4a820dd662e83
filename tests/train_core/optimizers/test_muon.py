"""Muon's update, its price, and trainings that go on with it; layouts are in training/test_random_recipes.py."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from costs import estimate
from costs.counts.muon import muon_flops
from costs.shared_rules import orthogonal_flops
from sweeps.planner.choosing.choice import choose_plans
from sweeps.planner.choosing.objectives import Training
from sweeps.planner.request import search_request
from tests.composed import composed, load
from tests.costs.test_random_memory import at_size, held_bytes
from tests.messages import refused
from tests.train_core.checkpoints.test_checkpoint import layout
from tests.train_core.conftest import ALONE, ExperimentOf, Worlds
from tests.train_core.training.random_layouts import Values, case_of
from train_core.optimizers.muon import orthogonal
from train_core.process.stop import never
from train_core.process.world import World
from train_core.rehearsal.stage import rehearse_stage
from train_core.training.train import train
from train_core.trial.folder import TrialFolder

MUON = {"training.optimizer": "muon", "training.learning_rate": 1e-2, "model.num_layers": 4}
SAVING = {"checkpoint.every_steps": 3, "checkpoint.asynchronous": False, "training.num_steps": 6}
REHEARSED = (58_108, 58_103, 58_105, 58_106, 58_113, 58_114)


@pytest.mark.parametrize("shape", [(8, 20), (20, 8), (16, 16)])
def test_an_orthogonal_matrix_has_singular_values_near_one_times_the_size_of_adams_updates(
    shape: tuple[int, int],
) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    with FlopCounterMode(display=False) as counter:
        made = orthogonal(matrix, torch.float32)
    singular = torch.linalg.svdvals(made) / (0.2 * max(shape) ** 0.5)
    assert bool(((singular > 0.3) & (singular < 1.3)).all()), singular
    assert counter.get_total_flops() == orthogonal_flops(*shape)
    assert torch.equal(orthogonal(torch.zeros(shape), torch.float32), torch.zeros(shape))


def losses_of(world: World, experiment: Experiment, folder: Path, tokens: Path) -> tuple[float, ...]:
    trial = TrialFolder(folder)
    return train(experiment, world, tokens, trial.append_metrics, never, trial).losses


BEFORE, AFTER = layout(2, 1, 2, zero_stage=1), layout(1, 2, 2, zero_stage=2)


@pytest.mark.slow
def test_a_training_with_muon_goes_on_bit_for_bit_and_in_another_layout(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    tokens, saving = tmp_path / "tokens", MUON | SAVING
    whole = worlds(4).run(losses_of, experiment_of(saving | BEFORE), tmp_path / "whole", tokens)[0]
    load = {"checkpoint.load": str(tmp_path / "whole/checkpoints/step-000003"), "checkpoint.resume": True}
    resumed = MUON | {"training.num_steps": 6} | load
    same = worlds(4).run(losses_of, experiment_of(resumed | BEFORE), tmp_path / "same", tokens)[0]
    assert same == whole[3:]
    other = worlds(4).run(losses_of, experiment_of(resumed | AFTER), tmp_path / "other", tokens)[0]
    np.testing.assert_allclose(other, whole[3:], rtol=1e-5)


@pytest.mark.slow
def test_states_of_another_optimizer_are_refused(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    saved, small = tmp_path / "saved", {"model.num_layers": 1, "training.num_steps": 3, "training.num_warmup_steps": 0}
    losses_of(ALONE, experiment_of(small | {"checkpoint.every_steps": 3}), saved, tmp_path)
    checkpoint = saved / "checkpoints/step-000003"
    for resumes in (True, False):
        start = {"checkpoint.load": str(checkpoint), "checkpoint.resume": resumes, "training.num_steps": 5}
        asked = experiment_of(small | start | {"training.optimizer": "muon"})
        with refused(ConfigError, "training.optimizer") as caught:
            losses_of(ALONE, asked, tmp_path / "other", tmp_path)
        assert str(checkpoint) in str(caught.value)


def with_muon(random: Random, values: Values) -> Values:
    return at_size(random, values) | {"training.optimizer": "muon", "precision.matmul_recipe": None}


@pytest.mark.one_in(6)
@pytest.mark.slow
@pytest.mark.parametrize("number", REHEARSED)
def test_memory_and_products_are_those_of_a_rehearsal(number: int) -> None:
    """ZeRO-0, 1 and 3, tensor and context ranks, experts; 58,103 to 58,115 were drawn when the price was written."""
    experiment = case_of(number, with_muon, ("model=tiny", "cluster=dgx-h100")).experiment
    adamw = experiment.training.model_copy(update={"optimizer": "adamw"})
    for stage in range(experiment.parallel.pipeline_parallel_size):
        held, predicted = held_bytes(experiment, stage), estimate(experiment).stages[stage].allocated_bytes
        assert held - predicted <= max(0.02 * held, 8 * 2**20)
        assert predicted - held <= max(0.25 * held, 8 * 2**20), "a bucket is taken to be as long as it may be"
        plain = rehearse_stage(experiment.model_copy(update={"training": adamw}), stage).flops
        assert rehearse_stage(experiment, stage).flops - plain == muon_flops(experiment, stage)


def test_muon_keeps_one_state_of_a_matrix_and_its_update_takes_longer() -> None:
    plan = ["model=llama-2-7b", "cluster=dgx-h100", "precision=bf16", "parallel.world_size=8", "parallel.zero_stage=1"]
    adamw, muon = (
        estimate(load([*plan, "batch.global_batch_size=64", f"training.optimizer={name}"]).experiment())
        for name in ("adamw", "muon")
    )
    spared = adamw.stages[0].optimizer_bytes - muon.stages[0].optimizer_bytes
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert spared == matrices // 8 * 4
    assert muon.step_terms.optimizer_seconds > 2 * adamw.step_terms.optimizer_seconds


@pytest.mark.parametrize(
    ("zero", "tensor", "sharing"), [(0, 1, 1), (0, 2, 2), (1, 1, 8), (1, 4, 8), (2, 2, 8), (3, 2, 8)]
)
def test_ranks_share_out_the_products_of_matrices_that_are_longer_than_a_bucket(
    zero: int, tensor: int, sharing: int
) -> None:
    model = ["model=llama-2-7b", "cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=64"]
    plan = [f"parallel.zero_stage={zero}", f"parallel.tensor_parallel_size={tensor}", "parallel.world_size=8"]
    experiment = load([*model, *plan, "training.optimizer=muon"]).experiment()
    shapes = ((12_288, 4096), (4096, 4096), (22_016, 4096), (4096, 11_008))
    assert muon_flops(experiment, 0) == 32 // sharing * sum(orthogonal_flops(*shape) for shape in shapes)


def test_a_search_prices_the_update_of_the_optimizer_that_is_asked_for() -> None:
    asked = ["model=llama-2-7b", "cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=64"]
    asked += ["parallel.world_size=8", "parallel.tensor_parallel_size=1", "parallel.pipeline_parallel_size=1"]
    request = search_request(composed([*asked, "training.optimizer=muon"]))
    (best, *_) = choose_plans(request.spaces, "time", Training(), 20).best
    experiment = best.strategy.experiment(request.settings)
    assert experiment.training.optimizer == "muon"
    assert best.step_seconds == pytest.approx(estimate(experiment).step_seconds, rel=1e-12)
