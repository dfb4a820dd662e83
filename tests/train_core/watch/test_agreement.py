"""Replicas that diverge are traced back to a rank and a parameter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conf.errors import TrainingError
from conf.plan.experiment import Experiment
from tests.train_core.conftest import ALONE, ExperimentOf, Worlds
from tests.train_core.training.layouts import MIXTURE
from train_core.process.world import World
from train_core.training.train import train
from train_core.training.trainer import Trainer
from train_core.watch.agreement import checksum, require_equal_replicas


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_flipped_bit_changes_the_checksum(dtype: torch.dtype) -> None:
    values = torch.randn(64, generator=torch.Generator().manual_seed(1)).to(dtype)
    bits = torch.int32 if dtype is torch.float32 else torch.int16
    before = checksum(values)
    for bit in range(8 * values.element_size()):
        flipped = values.clone()
        flipped.view(bits)[17] ^= torch.tensor(1 << bit, dtype=torch.int64).to(bits)
        assert checksum(flipped) != before, f"bit {bit}"


def verdict_of(act: Callable[[], object]) -> tuple[str, int | None]:
    """The message of the error that ends it, and the rank that is blamed."""
    try:
        act()
    except TrainingError as error:
        return str(error), error.blamed
    return "", None


def flip_a_bit(trainer: Trainer, name: str, element: int = 0) -> None:
    parameter = dict(trainer.stage.named_parameters())[name]
    parameter.detach().flatten().view(torch.int32)[element] ^= 1


def compared(
    world: World, experiments: list[Experiment], cache: Path, rank: int, name: str
) -> list[tuple[str, int | None]]:
    """What every rank says when one bit of one rank's weights was flipped, in each of the layouts."""
    told = []
    for experiment in experiments:
        trainer = Trainer(experiment, world, cache)
        trainer.step(1)
        trainer.replicas.wait_for_weights()
        require_equal_replicas(trainer.stage, trainer.mesh, 1)
        if world.rank == rank:
            flip_a_bit(trainer, name)
        told.append(verdict_of(lambda: require_equal_replicas(trainer.stage, trainer.mesh, 2)))  # noqa: B023
    return told


SHARDED: dict[str, object] = {
    "parallel.world_size": 3,
    "model.num_layers": 1,
    "batch.global_batch_size": 6,
    "training.num_steps": 3,
    "watch.compare_replicas_every": 1,
}
FOUR = {"parallel.world_size": 4, "model.num_layers": 2, "batch.global_batch_size": 4}
LAYOUTS = {
    "dp4": FOUR,
    "tp2 dp2": FOUR | {"parallel.tensor_parallel_size": 2},
    "tp4": FOUR | {"parallel.tensor_parallel_size": 4, "parallel.sequence_parallel": True},
    "pp2 dp2": FOUR | {"parallel.pipeline_parallel_size": 2},
}


@pytest.mark.slow
def test_the_rank_with_a_flipped_bit_is_named_by_all_and_two_that_differ_accuse_nobody(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    name = "layers.1.attention_norm.weight"
    experiments = [experiment_of(values) for values in LAYOUTS.values()]
    told, *others = worlds(4).run(compared, experiments, tmp_path, 2, name)
    assert all(other == told for other in others), "ranks that share nothing with rank 2 say the same"
    words, blamed = (dict(zip(LAYOUTS, values, strict=True)) for values in zip(*told, strict=True))
    assert words["dp4"].startswith(
        f"the weights diverged by step 2: rank 2 differs from ranks 0-1, 3 over the data axis, first in {name}. Suspect"
    )
    assert words["tp4"].startswith("the weights diverged by step 2: rank 2 differs from ranks 0-1, 3 over the tensor")
    assert "ranks 0, 2 differ over the data axis and ranks 2-3 differ over the tensor axis" in words["tp2 dp2"]
    assert "ranks 2-3 differ over the data axis, first in" in words["pp2 dp2"]
    assert "(which of them is wrong cannot be told). Suspect a device or link of ranks 2-3: " in words["pp2 dp2"]
    assert blamed == {"dp4": 2, "tp2 dp2": 2, "tp4": 2, "pp2 dp2": None}


def test_experts_are_compared_among_the_ranks_that_hold_the_same_ones(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    name = "layers.1.feed_forward.experts.up.weight"
    values = (
        FOUR | MIXTURE | {"parallel.world_size": 8, "batch.global_batch_size": 8, "parallel.expert_parallel_size": 2}
    )
    told, *others = worlds(8).run(compared, [experiment_of(values)], tmp_path, 2, name)
    assert all(other == told for other in others)
    ((words, blamed),) = told
    assert f"rank 2 differs from ranks 0, 4, 6 over the expert_replicas axis, first in {name}" in words
    assert blamed == 2


@pytest.mark.slow
def test_a_training_compares_its_replicas_when_told_to(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    values = {"parallel.world_size": 2, "training.num_steps": 3, "watch.compare_replicas_every": 2}
    told = worlds(2).run(trained_with_a_flipped_bit, experiment_of(values), tmp_path, 1, 0)
    assert "by step 2: ranks 0-1 differ over the data axis" in told[0][0]
    assert told[0][1] is None
    assert told[0] == told[1]


@pytest.mark.parametrize(("every", "says"), [(2, True), (None, False)])
def test_a_training_without_replicas_says_that_it_compares_nothing(
    experiment_of: ExperimentOf, tmp_path: Path, caplog: pytest.LogCaptureFixture, every: int | None, says: bool
) -> None:
    values = {"training.num_steps": 2, "model.num_layers": 1, "watch.compare_replicas_every": every}
    train(experiment_of(values | {"cluster.device.peak_source": "as declared"}), ALONE, tmp_path)
    assert ("watch.compare_replicas_every = 2: no two ranks hold the same weights" in caplog.text) == says


def trained_with_a_flipped_bit(
    world: World, experiment: Experiment, cache: Path, in_step: int, element: int
) -> tuple[str, int | None]:
    """How a training ends in which an element of rank 1's embedding changes while a step's passes run."""

    def flip(trainer: Trainer, step: int) -> Tensor:
        losses = passes(trainer, step)
        if world.rank == 1 and step == in_step:
            flip_a_bit(trainer, "embedding.tokens.weight", element)
        return losses

    passes = Trainer.passes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "passes", flip)
        return verdict_of(lambda: train(experiment, world, cache))


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [1, 2])
@pytest.mark.parametrize("element", [0, -1], ids=["another's shard", "its own shard"])
def test_a_flipped_bit_is_found_before_the_replicas_gather_their_weights_anew(
    zero_stage: int, element: int, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(SHARDED | {"parallel.zero_stage": zero_stage})
    for words, blamed in worlds(3).run(trained_with_a_flipped_bit, experiment, tmp_path, 2, element):
        assert "by step 2: rank 1 differs from ranks 0, 2 over the data axis, first in embedding.tokens" in words
        assert blamed == 1
