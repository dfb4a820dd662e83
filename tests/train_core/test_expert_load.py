"""How evenly experts got tokens is the same figure however the experts are spread."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from conf.plan.experiment import Experiment
from costs import DoneShares, hardware_flops, model_flops
from results.mlflow.metric_keys import measured_metrics, step_metrics
from tests.costs.test_exact import PRODUCTS_OF_ATTENTION
from tests.train_core.conftest import ExperimentOf, Worlds
from tests.train_core.training.layouts import MIXTURE, mixture_with
from train_core import expert_load
from train_core.expert_load import ExpertLoads
from train_core.parallel.collectives import all_reduce
from train_core.process.world import World
from train_core.training.train import train
from train_core.training.trainer import Trainer
from train_core.trial.measurement import Performance, StepMetrics


def trained(world: World, experiment: Experiment, folder: Path) -> tuple[Performance, list[StepMetrics]]:
    steps: list[StepMetrics] = []
    return train(experiment, world, folder, steps.append), steps


SPREAD: list[dict[str, Any]] = [
    {"parallel.world_size": 2, "parallel.expert_parallel_size": 2, "parallel.recompute": "full"},
    {"parallel.world_size": 4, "parallel.pipeline_parallel_size": 2, "parallel.expert_parallel_size": 2},
]


@pytest.mark.thorough  # than the share of dropped choices below
@pytest.mark.slow
def test_loads_of_experts_do_not_depend_on_where_they_are(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    shared = MIXTURE | {"data.source": "synthetic", "training.num_steps": 3, "batch.global_batch_size": 8}
    alone, its_steps = worlds(1).run(trained, experiment_of(shared), tmp_path)[0]
    assert [len(layer) for layer in alone.expert_loads] == [8] * 7  # the first of eight layers is dense
    assert [sum(layer) for layer in alone.expert_loads] == pytest.approx([8] * 7)
    assert alone.busiest_expert_load == max(map(max, alone.expert_loads)) > 1
    assert measured_metrics(alone)["meas/expert_load"] == alone.busiest_expert_load
    assert step_metrics(its_steps[0])["step/expert_load"] > 1
    for values in SPREAD:
        size = values["parallel.world_size"]
        performance, steps = worlds(size).run(trained, experiment_of(shared | values), tmp_path)[0]
        for own, expected in zip(performance.expert_loads, alone.expert_loads, strict=True):
            assert own == pytest.approx(expected, rel=0.02)  # rounding may send a token elsewhere
        assert [step.busiest_expert_load for step in steps] == pytest.approx(
            [step.busiest_expert_load for step in its_steps], rel=0.02
        )


@pytest.mark.slow
def test_the_share_of_dropped_choices_does_not_depend_on_where_experts_are(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    shared = mixture_with(capacity_factor=1.0) | {"data.source": "synthetic", "training.num_steps": 2}
    shared |= {"model.num_layers": 3, "batch.global_batch_size": 8}
    alone, its_steps = worlds(1).run(trained, experiment_of(shared), tmp_path)[0]
    assert alone.dropped_share is not None
    assert 0.05 < alone.dropped_share < 0.5
    assert alone.dropped_share == its_steps[-1].dropped_share  # the one step that is timed
    assert measured_metrics(alone)["meas/dropped_pct"] == 100 * alone.dropped_share
    kept = DoneShares(kept=1 - alone.dropped_share)
    assert alone.model_flops == model_flops(experiment_of(shared).model, 8, kept)
    rates = its_steps[-1].model_flops_per_second_per_device, alone.model_flops_per_second_per_device
    assert rates[0] == pytest.approx(rates[1])
    spread: dict[str, Any] = {"parallel.world_size": 4, "parallel.context_parallel_size": 2}
    spread |= {"parallel.pipeline_parallel_size": 2, "parallel.expert_parallel_size": 2, "parallel.recompute": "full"}
    performance, steps = worlds(4).run(trained, experiment_of(shared | spread), tmp_path)[0]
    assert performance.dropped_share == pytest.approx(alone.dropped_share, rel=0.02)
    assert step_metrics(steps[0])["step/dropped_pct"] == pytest.approx(
        100 * (its_steps[0].dropped_share or 0), rel=0.02
    )


def test_a_layer_whose_forward_pass_is_repeated_counts_as_much_as_any_other(
    experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    limited = mixture_with(capacity_factor=1.0, num_dense_layers=0) | {"model.num_layers": 4}
    shares = list[float | None]()
    for every in (None, 2, 1):
        recompute = {"parallel.recompute": "full", "parallel.recompute_every": every} if every else {}
        experiment = experiment_of(limited | recompute)
        trainer = Trainer(experiment, World(0, 1, torch.device("cpu"), "gloo"), tmp_path)
        loads = ExpertLoads(experiment.model, trainer.router_biases, trainer.optimizer.device)
        trainer.step(1)
        shares.append(loads.add_step(is_timed=True).dropped_share)
    assert shares[0] is not None
    assert shares[1:] == [shares[0]] * 2


def _added_product(gradient: Any, left: Any, right: Any, **_: Any) -> int:
    return 2 * int(left[0] * left[1] * right[1])


UNCOUNTED = PRODUCTS_OF_ATTENTION | {torch.ops.aten.addmm_: _added_product}
"""Products that torch's counter does not know."""


def test_experts_multiply_for_the_choices_alone_that_find_room(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    values = mixture_with(capacity_factor=1.0) | {"parallel.recompute": "full", "model.num_layers": 2}
    experiment = experiment_of(values)
    trainer = Trainer(experiment, World(0, 1, torch.device("cpu"), "gloo"), tmp_path)
    loads = ExpertLoads(experiment.model, trainer.router_biases, trainer.optimizer.device)
    with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
        trainer.passes(1)
    dropped = loads.add_step(is_timed=True).dropped_share
    assert dropped
    executed = partial(hardware_flops, experiment.model, experiment.batch.global_batch_size, "full")
    assert counter.get_total_flops() == executed(done=DoneShares(kept=1 - dropped)) < executed()


def test_a_process_that_has_timed_no_step_knows_no_share_of_dropped_choices(
    experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """As one that finds all steps done, or has but those left that warm up."""
    experiment = experiment_of(mixture_with(capacity_factor=1.0) | {"model.num_layers": 2})
    trainer = Trainer(experiment, World(0, 1, torch.device("cpu"), "gloo"), tmp_path)
    loads = ExpertLoads(experiment.model, trainer.router_biases, trainer.optimizer.device)
    assert loads.fields() == {"expert_loads": (), "dropped_share": None}
    trainer.step(1)
    assert loads.add_step(is_timed=False).dropped_share is not None
    assert loads.fields() == {"expert_loads": (), "dropped_share": None}


def test_a_stage_sums_its_loads_once_a_step(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    """Biases of routers move by the same sums."""
    values = mixture_with(balance_bias=0.01) | {"model.num_layers": 2}
    experiment = experiment_of(values | {"data.source": "synthetic"})
    trainer = Trainer(experiment, World(0, 1, torch.device("cpu"), "gloo"), tmp_path)
    loads = ExpertLoads(experiment.model, trainer.router_biases, trainer.optimizer.device)
    with patch.object(expert_load, "all_reduce", side_effect=all_reduce) as sums:
        trainer.step(1)
        with patch.object(trainer.router_biases, "stage_rows", None):
            counted = loads.add_step(is_timed=True)
        sums.reset_mock()
        assert loads.add_step(is_timed=True) == counted
        assert sums.call_count == 0


def device_of_exchange(world: World, experiment: Experiment, folder: Path) -> torch.device:
    trainer = Trainer(experiment, world, folder)
    trainer.step(1)
    with patch.object(expert_load, "gather", side_effect=[[[1.0, 0.0, 1.0]]]) as gather:
        ExpertLoads(experiment.model, trainer.router_biases, torch.device("meta")).add_step(is_timed=True)
    return gather.call_args.args[2]


def test_a_stage_without_experts_takes_part_with_a_tensor_of_its_device(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """The host's would wait for nobody: on GPUs the other stages exchange through NCCL."""
    values = MIXTURE | {"model.num_layers": 2, "parallel.world_size": 2, "parallel.pipeline_parallel_size": 2}
    devices = worlds(2).run(device_of_exchange, experiment_of(values), tmp_path)  # the first of the two layers is dense
    assert devices == [torch.device("meta")] * 2


def test_a_model_without_experts_says_nothing_of_them(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    performance, steps = worlds(1).run(trained, experiment_of({"training.num_steps": 2}), tmp_path)[0]
    assert performance.expert_loads == ()
    assert performance.busiest_expert_load is None
    assert steps[0].busiest_expert_load is steps[0].dropped_share is None
    assert "meas/expert_load" not in measured_metrics(performance)
