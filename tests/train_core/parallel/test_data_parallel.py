"""What travels between replicas does so beside the passes, and is there when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from conf.plan.experiment import Experiment
from costs import num_parameters
from costs.counts.buckets import layer_parameters_of
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.parallel import data_parallel, fully_sharded
from train_core.parallel.data_parallel import Bucket, FlatReplicas, ShardReduction, flatten
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import Stage, parallelize
from train_core.process.world import World
from train_core.training import trainer as training
from train_core.training.trainer import Trainer

TWO_REPLICAS = {"parallel.world_size": 2, "batch.micro_batch_size": 1}


def losses_of(world: World, experiment: Experiment, cache_dir: Path, late: bool) -> list[float]:
    trainer = Trainer(experiment, world, cache_dir)
    replicas, losses = trainer.replicas, list[float]()
    assert isinstance(replicas, FlatReplicas)
    replicas.gathers_late = late
    for step in range(1, 4):
        losses.append(trainer.step(step).loss)
        assert (replicas.are_apart, replicas.gathering) == (late, {}), "something travels between steps"
    replicas.zero_gradients()
    assert len(replicas.gathering) == (len(replicas.buckets) if late else 0), "no gather is on its way"
    trainer.passes(4)
    assert not replicas.gathering, "a forward pass did not wait for its weights"
    return losses


@pytest.mark.one_in(2)
@pytest.mark.parametrize("zero_stage", [1, 2])
def test_weights_that_travel_beside_the_next_forward_pass_are_there_when_it_needs_them(
    zero_stage: int, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(TWO_REPLICAS | {"parallel.zero_stage": zero_stage})
    at_once, late = (worlds(2).run(losses_of, experiment, tmp_path, late) for late in (False, True))
    assert at_once == late


def trainer_with_small_buckets(world: World, experiment: Experiment, cache_dir: Path) -> Trainer:
    """After one step's passes."""
    with pytest.MonkeyPatch.context() as patch:  # the process goes on to other tests
        patch.setattr(data_parallel, "flatten", partial(flatten, max_elements=5000))
        trainer = Trainer(experiment, world, cache_dir)
    trainer.passes(1)
    return trainer


def started_during_backward(world: World, experiment: Experiment, cache_dir: Path) -> tuple[int, int]:
    """How many buckets there are, and how many sums over the replicas had started when backward was over."""
    trainer = trainer_with_small_buckets(world, experiment, cache_dir)
    assert isinstance(trainer.replicas, FlatReplicas)
    reductions = trainer.replicas.reductions
    return len(reductions), sum(reduction.pending is not None for reduction in reductions)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_every_bucket_is_summed_as_soon_as_its_last_gradient_is_there(
    schedule: str, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    values = {"parallel.world_size": 4, "parallel.pipeline_parallel_size": 2, "parallel.schedule": schedule}
    answers = worlds(4).run(started_during_backward, experiment_of(values), tmp_path)
    assert all(num_buckets > 8 and num_started == num_buckets for num_buckets, num_started in answers)


def bytes_between_passes(world: World, experiment: Experiment, cache_dir: Path) -> tuple[int, int]:
    """Of whole gradient buckets that have memory after a backward pass, and of all buckets."""
    replicas = trainer_with_small_buckets(world, experiment, cache_dir).replicas
    assert isinstance(replicas, FlatReplicas)
    assert all(isinstance(reduction, ShardReduction) for reduction in replicas.reductions)
    held = sum(bucket.gradients.untyped_storage().size() for bucket in replicas.buckets)
    return held, sum(bucket.gradients.nbytes for bucket in replicas.buckets)


def test_zero_2_holds_no_whole_gradients_between_passes(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(TWO_REPLICAS | {"parallel.zero_stage": 2})
    for held, whole in worlds(2).run(bytes_between_passes, experiment, tmp_path):
        assert 0 < held < 0.2 * whole, "but for the last bucket, which is on its way"


def gradients_held_before_each_bucket(world: World, experiment: Experiment, cache_dir: Path) -> list[int]:
    """Bytes that buckets before it hold for gradients when the next one is made."""
    held = list[int]()

    def recorded(stage: Stage, mesh: Mesh, gradient_dtype: torch.dtype) -> Iterator[Bucket]:
        made = list[Bucket]()
        for bucket in flatten(stage, mesh, gradient_dtype, max_elements=5000):
            held.append(sum(other.gradients.untyped_storage().nbytes() for other in made))
            made.append(bucket)
            yield bucket

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_parallel, "flatten", recorded)
        Trainer(experiment, world, cache_dir)
    return held


def test_zero_2_never_holds_the_gradients_of_two_buckets_while_it_is_built(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(TWO_REPLICAS | {"parallel.zero_stage": 2})
    held = worlds(2).run(gradients_held_before_each_bucket, experiment, tmp_path)[0]
    assert len(held) > 2
    assert not any(held)


def whole_weights_while_sharding(world: World, experiment: Experiment, cache_dir: Path) -> list[int]:
    """Elements that are not sharded yet, each time before a module is."""
    built, whole = list[Stage](), list[int]()

    def kept(*arguments: Any) -> Stage:
        built.append(parallelize(*arguments))
        return built[0]

    def recorded(module: nn.Module, **options: Any) -> FSDPModule:
        parameters = [parameter for _, parameter in built[0].named_parameters()]
        whole.append(sum(one.numel() for one in parameters if not (one.is_meta or isinstance(one, DTensor))))
        return fully_shard(module, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fully_sharded, "fully_shard", recorded)
        patch.setattr(training, "parallelize", kept)
        Trainer(experiment, world, cache_dir)
    return whole


def test_zero_3_never_holds_more_than_a_layer_whole_while_it_is_built(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(TWO_REPLICAS | {"parallel.zero_stage": 3})
    *layers, rest = worlds(2).run(whole_weights_while_sharding, experiment, tmp_path)[0]
    layer = sum(one.length for one in layer_parameters_of(experiment))
    assert layers == [layer] * experiment.model.num_layers
    assert rest == num_parameters(experiment.model) - sum(layers)
