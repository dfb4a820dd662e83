"""Stages on several types of devices, each declared, with uneven layers: the same training as on one type."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from conf.plan.experiment import Experiment
from tests.composed import load_cluster
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.model.initialize import initial_value
from train_core.parallel import parallelize
from train_core.process.world import World
from train_core.training.train import train
from train_core.training.trainer import Trainer
from train_core.trial.measurement import Performance

PLANS: dict[tuple[int, int], dict[str, object]] = {
    (1, 3): {"parallel.pipeline_parallel_size": 4, "parallel.layers_per_stage": [1, 1, 1, 2]},
    (2, 2): {"parallel.pipeline_parallel_size": 2, "parallel.layers_per_stage": [2, 3], "parallel.zero_stage": 1},
}

FOUR_RANKS: dict[str, object] = {
    "parallel.world_size": 4,
    "model.num_layers": 5,
    "model.tied_embeddings": True,
    "batch.global_batch_size": 4,
}


def blocks_of(first: int, second: int) -> list[dict[str, Any]]:
    """Two kinds of CPU: the machine's own, and one that declares half of its peak and of its memory."""
    own = load_cluster("local").model_dump()
    device = own["device"]
    peaks = {dtype: peak / 2 for dtype, peak in device["peak_flops_per_second"].items()}
    slower = device | {"peak_flops_per_second": peaks, "memory_bytes": device["memory_bytes"] // 2, "name": "slower"}
    other = own | {"name": "other", "device": slower}
    return [{"cluster": own, "num_devices": first}, {"cluster": other, "num_devices": second}]


def performance_of(world: World, experiment: Experiment, folder: Path) -> Performance:
    return train(experiment, world, folder)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("sizes", PLANS)
def test_mixed_stages_train_to_the_very_losses_of_equal_ones(
    sizes: tuple[int, int], worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    parallel = PLANS[sizes] | FOUR_RANKS
    plain = worlds(4).run(performance_of, experiment_of(parallel), tmp_path)[0]
    mixed = worlds(4).run(performance_of, experiment_of(parallel | {"mixed": blocks_of(*sizes)}), tmp_path)[0]
    assert mixed.losses == plain.losses
    assert plain.blocks == ()
    assert [(block.cluster, block.num_ranks) for block in mixed.blocks] == list(
        zip(("local", "other"), sizes, strict=True)
    )
    shares = [block.model_flops_per_second_per_device * block.num_ranks for block in mixed.blocks]
    whole = mixed.model_flops_per_second_per_device * sum(sizes)
    assert sum(shares) == pytest.approx(whole)
    assert max(block.peak_memory_bytes for block in mixed.blocks) == max(mixed.peak_memory_bytes)


def tied_matrix(world: World, experiment: Experiment, folder: Path) -> list[float]:
    def drawn_otherwise(name: str, shape: torch.Size, num_layers: int, seed: int, device: torch.device) -> Tensor:
        return initial_value(name, shape, num_layers, seed + world.rank, device)

    with patch.object(parallelize, "initial_value", drawn_otherwise):
        parameters = dict(Trainer(experiment, world, folder).stage.named_parameters())
    return parameters["embedding.tokens.weight" if world.rank < 2 else "head.weight"].flatten().tolist()


def test_a_tied_embedding_starts_alike_on_types_of_devices_that_draw_differently(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    plan = PLANS[2, 2] | FOUR_RANKS | {"mixed": blocks_of(2, 2)}
    first, _, last, _ = worlds(4).run(tied_matrix, experiment_of(plan), tmp_path)
    assert first == last
