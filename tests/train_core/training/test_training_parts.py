"""The parts that every step leans on: data order, schedule, treatment of parameters, meters, first weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from conf.plan.experiment import Experiment
from conf.types.model_spec import ModelSpec
from costs.axes import Layout
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.model.initialize import initial_value
from train_core.model.transformer import Layer
from train_core.optimizers.optimizer import StepResult
from train_core.parallel.collectives import Axis
from train_core.parallel.data_parallel import flatten
from train_core.parallel.groups import build_mesh, total
from train_core.parallel.parallelize import parallelize
from train_core.process.world import World, usable_cores
from train_core.training.meter import MATMUL_SIZES, Meter, count_devices, matmul_flops_per_second
from train_core.training.trainer import Trainer

CPU = torch.device("cpu")
ALONE = World(0, 1, CPU, "gloo")


def test_weights_decay_and_biases_and_norms_do_not(experiment_of: ExperimentOf) -> None:
    mesh = build_mesh(Layout({}), 0)
    stage = parallelize(experiment_of(), mesh, CPU)
    buckets = list(flatten(stage, mesh))
    assert len(buckets) == 2
    decayed = next(bucket for bucket in buckets if bucket.treatment.decays)
    for name, parameter in stage.named_parameters():
        low = decayed.weights.data_ptr()
        inside = low <= parameter.data_ptr() < low + decayed.weights.nbytes
        assert inside == name.endswith(("qkv.weight", "projection.weight", "up.weight", "down.weight")) or (
            inside == name.startswith("embedding")
        ), name


def values_read_by_the_update(world: World, experiment: Experiment, cache_dir: Path) -> list[list[int]]:
    """The shapes of the tensors whose values the host takes from the device between the passes and the next step."""
    trainer = Trainer(experiment, world, cache_dir)
    losses, read = trainer.passes(1), list[list[int]]()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("tolist", "item", "cpu", "__float__", "__bool__"):
            patch.setattr(torch.Tensor, name, _noted(getattr(torch.Tensor, name), read))
        trainer.optimizer.step(1, losses)
    return read


def _noted(method: Callable[[torch.Tensor], Any], read: list[list[int]]) -> Callable[[torch.Tensor], Any]:
    def noted(tensor: torch.Tensor) -> Any:
        read.append(list(tensor.shape))
        return method(tensor)

    return noted


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_an_update_waits_for_the_device_once(
    zero_stage: int, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """For the loss and the norm of the whole job, which come together."""
    experiment = experiment_of({"parallel.world_size": 2, "parallel.zero_stage": zero_stage, "model.num_layers": 1})
    assert worlds(2).run(values_read_by_the_update, experiment, tmp_path) == [[[2]], [[2]]]


def test_first_weights_depend_on_the_name_and_the_seed() -> None:
    shape = torch.Size((64, 64))
    one = initial_value("layers.3.attention.qkv.weight", shape, 8, 1, CPU)
    assert torch.equal(one, initial_value("layers.3.attention.qkv.weight", shape, 8, 1, CPU))
    assert not torch.equal(one, initial_value("layers.4.attention.qkv.weight", shape, 8, 1, CPU))
    assert not torch.equal(one, initial_value("layers.3.attention.qkv.weight", shape, 8, 2, CPU))
    assert float(one.std()) == pytest.approx(0.02, rel=0.05)
    ending = initial_value("layers.3.feed_forward.down.weight", shape, 8, 1, CPU)
    assert float(ending.std()) == pytest.approx(0.02 / 4, rel=0.05)
    assert initial_value("layers.3.attention_norm.weight", torch.Size((4,)), 8, 1, CPU).tolist() == [1.0] * 4
    assert initial_value("final_norm.bias", torch.Size((4,)), 8, 1, CPU).tolist() == [0.0] * 4


def test_the_whole_model_can_be_laid_out_without_memory(experiment_of: ExperimentOf) -> None:
    mesh = build_mesh(Layout({}), 0)
    huge = {"model.hidden_size": 12288, "model.ffn_hidden_size": 49152, "model.num_attention_heads": 96}
    huge["model.num_query_groups"] = 96
    stage = parallelize(experiment_of(huge), mesh, torch.device("meta"))
    assert sum(parameter.numel() for _, parameter in stage.named_parameters()) > 14e9


def test_a_stage_builds_its_own_layers_alone_with_the_values_of_the_whole_model(
    experiment_of: ExperimentOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four chunks on two stages; the last has the tied head, and not the embedding that it is a copy of."""
    built: list[Layer] = []

    def build(spec: ModelSpec, index: int) -> Layer:
        built.append(Layer(spec, index))
        return built[-1]

    monkeypatch.setattr("train_core.model.transformer.Layer", build)
    alone = build_mesh(Layout({}), 0)
    whole = dict(parallelize(experiment_of(), alone, CPU).named_parameters())
    sizes = {"parallel.world_size": 2, "parallel.pipeline_parallel_size": 2, "parallel.virtual_pipeline_size": 2}
    experiment = experiment_of(sizes | {"parallel.schedule": "interleaved"})
    for rank, layers in enumerate(("0145", "2367")):
        built.clear()
        stage = parallelize(experiment, replace(alone, axes={**alone.axes, ("pipeline",): Axis(2, rank)}), CPU)
        assert len(built) == 4
        assert [index for chunk in stage.chunks for index in chunk.layers] == list(layers)
        for name, parameter in stage.named_parameters():
            assert torch.equal(parameter, whole[stage.placements[name].name]), name
    assert "head.weight" in stage.placements


def test_warm_up_steps_are_left_out_of_the_time(experiment_of: ExperimentOf, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"training.num_steps": 5, "training.num_warmup_steps": 2, "cluster.device.peak_source": "a data sheet"}
    meter = Meter(experiment_of(values), ALONE, Axis())
    clock = iter([0, 100, 0, 100, 0, 1, 0, 3, 0, 2])
    # The module's own name alone: energy counters ask the same clock of the machine.
    monkeypatch.setattr(
        "train_core.training.meter.time", SimpleNamespace(perf_counter=lambda: next(clock), time=time.time)
    )
    metrics = [meter.time_step(step, lambda: StepResult(1.5, 0.1, 0.2)) for step in range(1, 6)]
    assert [m.warmup for m in metrics] == [True, True, False, False, False]
    performance = meter.performance()
    assert (performance.step_seconds, performance.step_seconds_min, performance.step_seconds_max) == (2, 1, 3)
    assert performance.tokens_per_second == 8 * 16 / 2
    assert performance.peak_source == "a data sheet"
    assert performance.peak_flops_per_second == 0.18e12
    flops = performance.model_flops
    assert performance.model_flops_per_second_per_device == pytest.approx(flops / 2)
    assert performance.model_flops_utilization == pytest.approx(flops / 2 / 0.18e12)


class SlowingClock:
    """A clock that goes on by an eighth of a second more on every further rank, each time it is read.

    Attributes:
        readings: what the real clock, which all processes of a machine share, said at each reading.
    """

    def __init__(self, rank: int) -> None:
        self.tick, self.now, self.readings = (rank + 1) / 8, 0.0, list[float]()

    def perf_counter(self) -> float:
        self.now += self.tick
        self.readings.append(time.monotonic())
        return self.now


def measured_together(world: World) -> tuple[float, int, float, float]:
    """The rate, the number of devices, and when this rank was ready to begin and when it began."""
    axis, clock = build_mesh(Layout({"tensor": world.size}), world.rank).world, SlowingClock(world.rank)
    ready = list[float]()

    def total_of_ready(values: list[float], axis: Axis, device: torch.device) -> list[float]:
        ready.append(time.monotonic())
        return total(values, axis, device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train_core.training.meter.time", clock)
        patch.setattr("train_core.training.meter.total", total_of_ready)
        rate = matmul_flops_per_second(world, axis, torch.float32, 1.0)
    return rate, count_devices(world, axis), ready[0], clock.readings[0]


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_ranks_begin_together_and_their_rates_add_up_over_the_cores_that_they_share(
    worlds: Worlds, num_ranks: int
) -> None:
    answers = worlds(num_ranks).run(measured_together)
    assert len({(rate, num_devices) for rate, num_devices, _, _ in answers}) == 1
    rate, num_devices, _, _ = answers[0]
    assert num_devices == min(num_ranks, len(usable_cores()))
    # Products until a second is over, by the seconds that they took: 7 in 8/8, 3 in 4/4, 2 in 9/8, 1 in 2/2.
    products_per_second = [7 / 1, 3 / 1, 2 / 1.125, 1 / 1]
    assert rate == pytest.approx(2 * MATMUL_SIZES["cpu"] ** 3 * sum(products_per_second[:num_ranks]))
    assert max(ready for _, _, ready, _ in answers) <= min(began for _, _, _, began in answers)


@pytest.mark.slow
def test_losses_fall_on_text_within_a_few_steps(experiment_of: ExperimentOf, worlds: Worlds, tmp_path: Path) -> None:
    values = {"training.learning_rate": 1e-2, "training.num_steps": 12, "data.cache_dir": str(tmp_path)}
    (losses,) = worlds(1).run(losses_of, experiment_of(values), tmp_path)
    assert losses[0] == pytest.approx(np.log(256), rel=0.05)
    assert losses[-1] < 0.85 * losses[0]


def losses_of(world: World, experiment: Experiment, cache_dir: Path) -> tuple[float, ...]:
    from train_core.training.train import train

    return train(experiment, world, cache_dir).losses
