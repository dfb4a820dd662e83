"""Replicas that diverge and values that are not finite are traced back to a rank and a parameter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conf.errors import TrainingError
from conf.experiment import Experiment
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.process.world import World
from train_core.training.train import train
from train_core.training.trainer import Trainer
from train_core.watch.agreement import checksum, require_equal_replicas
from train_core.watch.nonfinite import origin_of_nonfinite


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_flipped_bit_changes_the_checksum(dtype: torch.dtype) -> None:
    values = torch.randn(64, generator=torch.Generator().manual_seed(1)).to(dtype)
    bits = torch.int32 if dtype is torch.float32 else torch.int16
    before = checksum(values)
    for bit in range(8 * values.element_size()):
        flipped = values.clone()
        flipped.view(bits)[17] ^= torch.tensor(1 << bit, dtype=torch.int64).to(bits)
        assert checksum(flipped) != before, f"bit {bit}"


def message_of(act: Callable[[], object]) -> str:
    try:
        act()
    except TrainingError as error:
        return str(error)
    return ""


def flip_a_bit(trainer: Trainer, name: str) -> None:
    parameter = dict(trainer.stage.named_parameters())[name]
    parameter.detach().flatten().view(torch.int32)[0] ^= 1


def compared(world: World, experiments: list[Experiment], cache: Path, rank: int, name: str) -> list[str]:
    """What every rank says when one bit of one rank's weights was flipped, in each of the layouts."""
    told = []
    for experiment in experiments:
        trainer = Trainer(experiment, world, cache)
        trainer.step(1)
        trainer.replicas.wait_for_weights()
        require_equal_replicas(trainer.stage, trainer.mesh, 1)
        if world.rank == rank:
            flip_a_bit(trainer, name)
        told.append(message_of(lambda: require_equal_replicas(trainer.stage, trainer.mesh, 2)))  # noqa: B023
    return told


def test_a_replica_with_a_flipped_bit_is_named_by_those_that_compare_with_it(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    four = {"parallel.world_size": 4, "model.num_layers": 2, "batch.global_batch_size": 4}
    layouts = [
        four,
        four | {"parallel.tensor_parallel_size": 2, "parallel.zero_stage": 1},
        four | {"parallel.tensor_parallel_size": 4, "parallel.sequence_parallel": True},
    ]
    experiments = [experiment_of(values) for values in layouts]
    name = "layers.1.attention_norm.weight"
    told = worlds(4).run(compared, experiments, tmp_path, 2, name)
    data = f"rank 2 differs from ranks 0-1, 3, first in {name}. Suspect a device or link"
    for of_rank in told:
        assert of_rank[0].startswith("the weights diverged by step 2 over the data axis: ")
        assert data in of_rank[0]
        assert "over the tensor axis: " in of_rank[2]
        assert data in of_rank[2]
    assert f"over the data axis: ranks 0, 2 differ, first in {name}" in told[0][1]
    assert told[2][1] == told[0][1]
    assert f"over the tensor axis: ranks 2-3 differ, first in {name}" in told[3][1]
    assert told[1][1] == ""  # shares no parameter with rank 2


def test_a_training_compares_its_replicas_when_told_to(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    values = {"parallel.world_size": 2, "training.num_steps": 3, "watch.compare_replicas_every": 2}
    told = worlds(2).run(trained_with_a_flipped_bit, experiment_of(values), tmp_path)
    assert "by step 2 over the data axis: ranks 0-1 differ" in told[0]
    assert told[0] == told[1]


def trained_with_a_flipped_bit(world: World, experiment: Experiment, cache: Path) -> str:
    def flip(trainer: Trainer, step: int) -> Tensor:
        losses = passes(trainer, step)
        if world.rank == 1 and step == 1:
            flip_a_bit(trainer, "final_norm.weight")
        return losses

    passes = Trainer.passes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "passes", flip)
        return message_of(lambda: train(experiment, world, cache))


def poisoned_passes(world: World, experiments: list[Experiment], cache: Path, rank: int, where: str) -> list[str]:
    """What is found out after one rank's values went wrong: in a weight, in an output, or in a gradient."""
    told = []
    for experiment in experiments:
        trainer = Trainer(experiment, world, cache)
        if world.rank == rank:
            _poison(trainer, where)
        told.append(origin_of_nonfinite(trainer.stage, trainer.mesh, lambda: trainer.passes(1)))  # noqa: B023
    return told


def _poison(trainer: Trainer, where: str) -> None:
    chunk = trainer.stage.chunks[-1]
    up = f"layers.{next(iter(chunk.layers))}.feed_forward.up"
    module = chunk.get_submodule(up)
    if where == "weight":
        chunk.get_parameter(f"{up}.weight").data.flatten()[3] = float("nan")
    elif where == "output":
        module.register_forward_hook(lambda _, __, out: out * float("inf"))
    else:
        module.register_forward_hook(
            lambda _, __, out: out.register_hook(lambda gradient: gradient * float("nan")) and None
        )


@pytest.mark.parametrize("where", ["weight", "output", "gradient"])
def test_the_rank_and_module_where_a_value_first_is_not_finite_is_named(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path, where: str
) -> None:
    four = {"parallel.world_size": 4, "model.num_layers": 4, "batch.global_batch_size": 4}
    layouts = [four, four | {"parallel.pipeline_parallel_size": 4}, four | {"parallel.tensor_parallel_size": 4}]
    told = worlds(4).run(poisoned_passes, [experiment_of(values) for values in layouts], tmp_path, 2, where)
    for layout, of_rank in zip(layouts, told[0], strict=True):
        layer = 2 if "parallel.pipeline_parallel_size" in layout else 0
        assert f"the {where} " in of_rank
        assert f"layers.{layer}.feed_forward.up" in of_rank
        assert " of rank 2;" in of_rank
    assert told[0] == told[3]
