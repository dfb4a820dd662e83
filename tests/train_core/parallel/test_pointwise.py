"""Pointwise recomputation changes no bit of a training, and leaves nothing behind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conf.plan.experiment import Experiment
from tests.train_core.conftest import ALONE, ExperimentOf, Worlds
from train_core.parallel.layers import DroppedOutput
from train_core.process.world import World
from train_core.training.meter import held_out_losses
from train_core.training.trainer import Trainer
from train_core.watch.nonfinite import origin_of_nonfinite

SMALL: dict[str, Any] = {"model.num_layers": 2, "data.source": "synthetic", "batch.global_batch_size": 4}
LLAMA = {"model.family": "llama", "model.gated_mlp": True, "model.num_query_groups": 2}
SPLIT = {"parallel.world_size": 2, "parallel.tensor_parallel_size": 2, "parallel.sequence_parallel": True}
IN_STAGES = {"parallel.world_size": 2, "parallel.pipeline_parallel_size": 2, "parallel.schedule": "zero-bubble"}
SHARDED = {"parallel.world_size": 2, "parallel.zero_stage": 3}
CASES: dict[str, dict[str, Any]] = {
    "gpt": {},
    "gpt, gated, bf16": {"model.gated_mlp": True, "precision.dtype": "bf16"},
    "llama, dropping": LLAMA | {"training.dropout": 0.1},
    "llama, not gated": LLAMA | {"model.gated_mlp": False},
    "sequence parallel": SPLIT,
    "zero-bubble": LLAMA | IN_STAGES,
    "ZeRO-3, bf16": LLAMA | SHARDED | {"precision.dtype": "bf16"},
}

Result = tuple[list[float], list[Tensor]]


def trained(world: World, experiment: Experiment, cache_dir: Path) -> Result:
    """Losses and gradient norms of three steps, and the weights that this rank updates after them."""
    trainer = Trainer(experiment, world, cache_dir)
    steps = [trainer.step(step) for step in (1, 2, 3)]
    return [number for step in steps for number in (step.loss, step.gradient_norm)], trainer.replicas.own_weights()


def bits_of(world: World, experiments: tuple[Experiment, Experiment], cache_dir: Path) -> bool:
    (losses, weights), (others, other_weights) = (trained(world, each, cache_dir) for each in experiments)
    return losses == others and all(map(torch.equal, weights, other_weights))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", CASES)
def test_a_training_comes_to_the_same_bits_as_without(
    case: str, experiment_of: ExperimentOf, worlds: Worlds, tmp_path: Path
) -> None:
    values = SMALL | CASES[case]
    experiments = experiment_of(values), experiment_of(values | {"parallel.recompute": "pointwise"})
    ranks = values.get("parallel.world_size", 1)
    assert all(worlds(ranks).run(bits_of, experiments, tmp_path))


def held_bytes(experiment_of: ExperimentOf, cache_dir: Path) -> Callable[[str], int]:
    """Bytes that one layer's forward pass leaves for backward, counted by their storages."""

    def held(recompute: str) -> int:
        trainer = Trainer(experiment_of(SMALL | {"parallel.recompute": recompute}), ALONE, cache_dir)
        layer, kept = trainer.stage.chunks[0].layers["0"], dict[int, int]()

        def keep(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            layer(torch.randn(32, 1, 32, requires_grad=True))
        return sum(kept.values())

    return held


def test_outputs_that_are_made_again_are_not_kept(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    """Two norms' and the activation's, in fp32."""
    held = held_bytes(experiment_of, tmp_path)
    model = experiment_of(SMALL).model
    assert held("none") - held("pointwise") == 32 * (2 * model.hidden_size + model.ffn_hidden_size) * 4


def test_inputs_that_were_noted_do_not_outlive_the_pass(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    """Neither a training's, nor an evaluation's, which has no backward pass to let them go."""
    trainer = Trainer(experiment_of(SMALL | {"parallel.recompute": "pointwise"}), ALONE, tmp_path)
    recipes = [each for each in gc.get_objects() if type(each) is DroppedOutput]
    assert len(recipes) >= 6  # three in each of two layers
    trainer.step(1)
    assert all(recipe.x is None for recipe in recipes)
    held_out_losses(trainer)
    assert all(recipe.x is None for recipe in recipes)


def test_the_norm_in_which_a_value_is_first_not_finite_is_still_found(
    experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    trainer = Trainer(experiment_of(SMALL | {"parallel.recompute": "pointwise"}), ALONE, tmp_path)
    trainer.step(1)
    trainer.stage.chunks[0].get_parameter("layers.0.feed_forward_norm.weight").data.fill_(3e38)
    told = origin_of_nonfinite(trainer.stage, trainer.mesh, trainer.masters(), partial(trainer.is_finite_again, 2))
    assert told.words.startswith("first in the output of layers.0.feed_forward_norm (micro-batch 0) of rank 0")
