"""Values that are not finite are traced back to the rank and module where they first appeared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ReferenceType, ref

import pytest
import torch
from torch import Tensor

from conf.errors import TrainingError
from conf.plan.experiment import Experiment
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.optimizers.optimizer import Optimizer
from train_core.process.world import World
from train_core.rehearsal.stage import resident_gradients
from train_core.training.train import train
from train_core.training.trainer import Trainer

NAN = float("nan")
FOUR: dict[str, object] = {
    "parallel.world_size": 4,
    "model.num_layers": 4,
    "batch.global_batch_size": 4,
    "training.num_steps": 4,
    "cluster.device.peak_source": "as declared",  # spares each of these trainings measuring the peak
}
INTERLEAVED: dict[str, object] = {
    "parallel.pipeline_parallel_size": 2,
    "parallel.virtual_pipeline_size": 2,
    "parallel.schedule": "interleaved",
    "model.num_layers": 4,
}
BF16: dict[str, object] = {"precision.dtype": "bf16"}
LAYOUTS: dict[str, dict[str, object]] = {
    "dp4": FOUR,
    "dp4 zero1 bf16": FOUR | BF16 | {"parallel.zero_stage": 1},
    "dp4 zero3": FOUR | {"parallel.zero_stage": 3},
    "pp4": FOUR | {"parallel.pipeline_parallel_size": 4},
    "tp2 dp2 bf16": FOUR | BF16 | {"parallel.tensor_parallel_size": 2, "parallel.sequence_parallel": True},
}
Injure = Callable[[Trainer], None]


def up_of(trainer: Trainer, index: int = -1) -> tuple[str, Any]:
    """The first feed-forward matrix of a chunk of this rank, by default its last: its name, and the module."""
    chunk = trainer.stage.chunks[index]
    name = f"layers.{next(iter(chunk.layers))}.feed_forward.up"
    return name, chunk.get_submodule(name)


def injure_weight(trainer: Trainer) -> None:
    weight = up_of(trainer)[1].weight.data
    getattr(weight, "to_local", lambda: weight)().flatten()[3] = NAN


def injure_master(trainer: Trainer) -> None:
    trainer.optimizer.states[0].masters[5] = NAN


def injure_output(trainer: Trainer) -> None:
    up_of(trainer)[1].register_forward_hook(lambda _, __, out: out * float("inf"))


def injure_output_of_first_chunk(trainer: Trainer) -> None:
    up_of(trainer, 0)[1].register_forward_hook(lambda _, __, out: out * float("inf"))


def injure_gradient(trainer: Trainer) -> None:
    up_of(trainer)[1].register_forward_hook(damage_gradient)


def damage_gradient(module: object, inputs: object, out: Tensor) -> None:
    if out.requires_grad:
        out.register_hook(lambda gradient: gradient * NAN)


INJURIES: dict[str, Injure] = {
    "weight": injure_weight,
    "master": injure_master,
    "output": injure_output,
    "gradient": injure_gradient,
}


def verdict_of(experiment: Experiment, world: World, cache: Path) -> tuple[str, int | None]:
    with pytest.raises(TrainingError) as raised:
        train(experiment, world, cache)
    return str(raised.value), raised.value.blamed


def verdicts(
    world: World, experiments: list[Experiment], cache: Path, rank: int, injure: Injure
) -> list[tuple[str, int | None]]:
    """What every rank says, and whom it blames, when one rank's values go wrong before its second step."""
    told = []
    undisturbed = Trainer.step

    def disturbed(trainer: Trainer, step: int, *rest: Any) -> Any:
        if (world.rank, step) == (rank, 2):
            injure(trainer)
        return undisturbed(trainer, step, *rest)

    for experiment in experiments:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "step", disturbed)
            told.append(verdict_of(experiment, world, cache))
    return told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("weight", ["dp4 zero3", "pp4"]),
        ("master", ["dp4 zero1 bf16"]),
        ("output", ["tp2 dp2 bf16"]),
        ("gradient", ["dp4"]),
        *(pytest.param(where, list(LAYOUTS), marks=pytest.mark.thorough) for where in INJURIES),
    ],
)
def test_the_rank_where_a_value_first_is_not_finite_is_blamed_by_all(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path, where: str, names: list[str]
) -> None:
    experiments = [experiment_of(LAYOUTS[name]) for name in names]
    told, *others = worlds(4).run(verdicts, experiments, tmp_path, 2, INJURIES[where])
    assert all(other == told for other in others)
    for name, (words, blamed) in zip(names, told, strict=True):
        assert blamed == 2, f"{name}: {words}"
        assert " of rank 2;" in words
        assert ("suspect the device of rank 2" in words) == (where in ("weight", "master"))
        has_others = where in ("output", "gradient") and name != "pp4"
        assert ("Rank 2 alone saw it: if it comes again" in words) == has_others
        if where != "master":
            layer = 2 if name == "pp4" else 0
            assert f"first in the {where} " in words
            assert f"layers.{layer}.feed_forward.up" in words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("injure", "first_in"), [(injure_output_of_first_chunk, "output"), (injure_gradient, "gradient")]
)
def test_a_micro_batch_that_goes_round_the_stages_more_than_once_is_followed_chunk_after_chunk(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path, injure: Injure, first_in: str
) -> None:
    """The value then reaches a lower stage in the next chunk, and in backward a higher one."""
    stages = {"parallel.pipeline_parallel_size": 4, "model.num_layers": 8}
    (told,), *_ = worlds(4).run(verdicts, [experiment_of(FOUR | INTERLEAVED | stages)], tmp_path, 2, injure)
    words, blamed = told
    assert blamed == 2, words
    assert f"first in the {first_in} of " in words


def diverged(world: World, experiments: list[Experiment], cache: Path) -> list[tuple[str, int | None]]:
    return [verdict_of(experiment, world, cache) for experiment in experiments]


@pytest.mark.slow
def test_a_training_that_diverges_by_its_learning_rate_blames_no_rank(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    too_high: dict[str, object] = {
        "training.learning_rate": 1e30,
        "training.min_learning_rate": 1e30,
        "training.num_steps": 20,
    }
    both = FOUR | {"parallel.world_size": 2}
    layouts = [both, both | {"parallel.tensor_parallel_size": 2}, both | {"parallel.zero_stage": 3}]
    told, other = worlds(2).run(diverged, [experiment_of(values | too_high) for values in layouts], tmp_path)
    assert told == other
    for words, blamed in told:
        assert blamed is None, words
        assert "training diverged at step" in words
        assert "Lower training.learning_rate" in words


def injured_once(
    world: World, experiments: list[Experiment], cache: Path, rank: int, where: str
) -> list[tuple[str, int | None]]:
    """The same where the second step's passes go wrong, and run again do not."""
    told = []
    undisturbed = Trainer.passes

    for experiment in experiments:
        left = [1]

        def disturbed(trainer: Trainer, step: int) -> Tensor:
            if (world.rank, step) != (rank, 2) or not left:  # noqa: B023
                return undisturbed(trainer, step)
            left.pop()  # noqa: B023
            if where == "backward":  # before the replicas sum their gradients
                hook = up_of(trainer)[1].register_forward_hook(damage_gradient)
                losses = undisturbed(trainer, step)
                hook.remove()
                return losses
            losses = undisturbed(trainer, step)
            if where == "loss":
                return losses * NAN
            counted = [trainer.mesh.counts(of) for of in trainer.replicas.treatments]
            resident_gradients(trainer.replicas)[counted.index(True)][3] = NAN
            return losses

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "passes", disturbed)
            told.append(verdict_of(experiment, world, cache))
    return told


@pytest.mark.parametrize(
    ("where", "values", "source"),
    [
        ("loss", {}, "rank 1"),
        ("loss", {"parallel.pipeline_parallel_size": 2}, "one of ranks 0-1"),
        ("gradient", {"parallel.pipeline_parallel_size": 2}, "rank 1"),
        ("gradient", {"parallel.tensor_parallel_size": 2}, "rank 1"),
        ("backward", {}, "one of ranks 0-1"),
        ("gradient", INTERLEAVED, "one of ranks 0-1"),
    ],
)
def test_a_value_that_does_not_come_again_accuses_the_hardware_of_those_that_may_have_made_it(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path, where: str, values: dict[str, object], source: str
) -> None:
    experiment = experiment_of(FOUR | {"parallel.world_size": 2, "model.num_layers": 2} | values)
    told, other = worlds(2).run(injured_once, [experiment], tmp_path, 1, where)
    assert told == other
    words, blamed = told[0]
    assert f"which did not come again when the passes were repeated; its source is {source}. " in words
    assert "learning rate: leave" in words
    assert blamed == (1 if source == "rank 1" else None)


def gradients_kept(world: World, experiment: Experiment, cache: Path) -> list[bool]:
    """Whether a gradient of the step that went wrong still has memory when its passes run again."""
    kept, seen = list[bool](), list[ReferenceType[Tensor]]()
    undisturbed, sum_up = Trainer.passes, Optimizer.reduced_gradients

    def disturbed(trainer: Trainer, step: int) -> Tensor:
        kept.extend(each() is not None for each in seen)
        return undisturbed(trainer, step) * NAN

    def noted(optimizer: Optimizer) -> list[Tensor]:
        gradients = sum_up(optimizer)
        seen.append(ref(gradients[0]))
        return gradients

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "passes", disturbed)
        patch.setattr(Optimizer, "reduced_gradients", noted)
        verdict_of(experiment, world, cache)
    return kept


def test_gradients_that_are_not_finite_are_let_go_before_the_passes_run_again(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """They would take their memory twice, and the search for their origin could run out of it."""
    experiment = experiment_of(FOUR | {"parallel.world_size": 2, "parallel.zero_stage": 3})
    assert worlds(2).run(gradients_kept, experiment, tmp_path) == [[False]] * 2


def weights_beside_a_bad_loss(world: World, experiment: Experiment, cache: Path) -> tuple[list[Tensor], list[Tensor]]:
    """The weights before and after a step whose loss alone is not finite."""
    before, after = list[Tensor](), list[Tensor]()
    undisturbed = Trainer.passes

    def disturbed(trainer: Trainer, step: int) -> Tensor:
        if step < 2:
            return undisturbed(trainer, step)
        after[:] = [weight.data for _, weight in trainer.stage.named_parameters()]
        before[:] = before or [weight.clone() for weight in after]
        return undisturbed(trainer, step) * NAN

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "passes", disturbed)
        verdict_of(experiment, world, cache)
    return before, after


def test_a_loss_that_is_not_finite_leaves_the_weights_as_they_were(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """Gradients may be finite beside it, as where a log overflows."""
    experiment = experiment_of(FOUR | {"parallel.world_size": 1, "training.clip_gradient_norm": None})
    ((before, after),) = worlds(1).run(weights_beside_a_bad_loss, experiment, tmp_path)
    assert before
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
