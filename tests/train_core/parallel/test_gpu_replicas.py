"""How GPUs share gradients and weights out under ZeRO-1 and 2, with real numbers, on CPU ranks that are told to.

Gradients are reduced to shards instead of summed whole, and updated weights travel beside the next forward pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from conf.plan.experiment import Experiment
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.parallel.data_parallel import FlatReplicas
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import Stage
from train_core.process.world import World
from train_core.training.meter import held_out_losses
from train_core.training.trainer import OF_TRAININGS, Trainer, TrainerParts
from train_core.watch.agreement import require_equal_replicas

NUM_STEPS = 2
FOUR_RANKS: dict[str, dict[str, Any]] = {
    "four replicas": {},
    "tensor ranks": {"parallel.tensor_parallel_size": 2},
    "parts of a sequence": {"parallel.tensor_parallel_size": 2, "parallel.sequence_parallel": True},
    "1f1b": {"parallel.pipeline_parallel_size": 2, "parallel.recompute": "full"},
    "zero-bubble": {"parallel.pipeline_parallel_size": 2, "parallel.schedule": "zero-bubble"},
    "interleaved": {
        "parallel.pipeline_parallel_size": 2,
        "parallel.schedule": "interleaved",
        "parallel.virtual_pipeline_size": 2,
    },
    "bf16 gradients": {
        "parallel.tensor_parallel_size": 2,
        "precision.dtype": "bf16",
        "precision.gradient_dtype": "bf16",
    },
}
TRAINING = {
    "model.num_layers": 4,
    "parallel.world_size": 4,
    "batch.global_batch_size": 8,
    "batch.micro_batch_size": 1,
    "data.source": "synthetic",
    "training.num_steps": NUM_STEPS,
    "training.clip_gradient_norm": 0.5,
    "training.learning_rate": 3e-3,
    "training.adam_epsilon": 1e-3,  # else Adam turns the rounding of gradients that are zero into full steps
}


class Run(NamedTuple):
    losses: list[float]
    norms: list[float]
    held_out: float


def as_on_gpus(stage: Stage, mesh: Mesh, experiment: Experiment) -> FlatReplicas:
    return FlatReplicas(stage, mesh, experiment, scatters=True, gathers_late=True, is_wide=False)


def both_ways(world: World, experiment: Experiment, cache_dir: Path) -> list[Run]:
    """What CPU ranks do, and what the same ranks do in the way of GPUs."""
    ways = (OF_TRAININGS, TrainerParts(replicas=as_on_gpus))
    return [_run(world, experiment, cache_dir, parts) for parts in ways]


def _run(world: World, experiment: Experiment, cache_dir: Path, parts: TrainerParts) -> Run:
    trainer = Trainer(experiment, world, cache_dir, parts)
    results = [trainer.step(step) for step in range(1, NUM_STEPS + 1)]
    held_out = held_out_losses(trainer).mean  # its forward passes are the first to need the updated weights
    last = trainer.step(NUM_STEPS + 1)
    trainer.replicas.wait_for_weights()
    require_equal_replicas(trainer.stage, trainer.mesh, NUM_STEPS + 1)
    return Run([one.loss for one in (*results, last)], [one.gradient_norm for one in (*results, last)], held_out)


@pytest.mark.one_in(9)
@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [1, 2])
@pytest.mark.parametrize("layout", FOUR_RANKS.values(), ids=FOUR_RANKS)
def test_gradients_in_shards_and_late_weights_train_like_whole_ones(
    layout: dict[str, Any], zero_stage: int, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(TRAINING | layout | {"parallel.zero_stage": zero_stage})
    answers = worlds(4).run(both_ways, experiment, tmp_path)
    # Of two summands the order does not matter; four may be added up in another order to shards than whole.
    tolerance = 0.0 if experiment.data_parallel_size == 2 else 1e-5
    theirs, ours = ([*run.losses, *run.norms, run.held_out] for run in answers[0])
    np.testing.assert_allclose(ours, theirs, rtol=tolerance)
