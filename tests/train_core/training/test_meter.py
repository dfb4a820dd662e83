"""What lies inside the time of a step, and what does not."""

from __future__ import annotations

import time
import tracemalloc
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from conf.plan.experiment import Experiment
from costs import DoneShares, estimate, model_flops
from tests.steps import STEP
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.optimizers.optimizer import StepResult
from train_core.parallel.collectives import Axis
from train_core.process.world import World
from train_core.training.meter import DoneStep, Meter


def reported_when_timing_began(world: World, experiment: Experiment, reported: Path) -> bool:
    """Rank 0 takes its time to report a step; whether that was over when this rank's clock was read for the next."""
    meter = Meter(experiment, world, Axis(world.size, world.rank))
    seen: list[bool] = []
    ticks = count(1)

    def read_clock() -> float:
        seen.append(reported.exists())
        return float(next(ticks))

    if world.rank == 0:
        time.sleep(0.3)  # a slow file system; too short a pause lets a wrong order pass, and never fails a right one
        reported.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train_core.training.meter.time", SimpleNamespace(perf_counter=read_clock, time=time.time))
        metrics = meter.time_step(1, lambda: StepResult(1.0, 1.0, 0.1))
    assert metrics.step_seconds == 1.0
    return seen[0]


@pytest.mark.slow
def test_the_report_of_a_step_is_not_part_of_the_next_steps_time(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """Rank 0 writes to a file system that may be slow, while the other ranks are ready."""
    experiment = experiment_of({"parallel.world_size": 2})
    assert worlds(2).run(reported_when_timing_began, experiment, tmp_path / "reported") == [True, True]


def test_only_the_layers_that_are_recomputed_count_as_executed(experiment_of: ExperimentOf) -> None:
    """As predicted: the two are one formula."""
    experiment = experiment_of({"parallel.recompute": "full", "parallel.recompute_every": 2})
    meter = Meter(experiment, World(0, 1, torch.device("cpu"), "gloo"), Axis())
    for step in (1, 2):
        meter.time_step(step, lambda: StepResult(1.0, 1.0, 0.1))
    assert meter.performance().hardware_flops == estimate(experiment).hardware_flops


def test_steps_that_an_earlier_run_could_not_record_are_named(experiment_of: ExperimentOf) -> None:
    experiment = experiment_of({"training.num_steps": 6})
    history = [DoneStep.of(STEP)._replace(step=step, num_steps=6) for step in (1, 4)]
    meter = Meter(experiment, World(0, 1, torch.device("cpu"), "gloo"), Axis(), history=history, done=4)
    for step in (5, 6):
        meter.time_step(step, lambda: StepResult(1.0, 1.0, 0.1))
    performance = meter.performance()
    assert performance.unrecorded_steps == (2, 3)
    assert performance.recorded_steps == [1, 4, 5, 6]
    assert len(performance.losses) == 4


@pytest.mark.parametrize(
    ("num_added", "read", "share"),
    [
        pytest.param(3, [1001, 1002, 1003], 0.5, id="of those that this process timed"),
        pytest.param(0, list(range(901, 1001)), 0.25, id="of the last ones where it timed none"),
    ],
)
def test_documents_of_steps_before_an_interruption_are_not_all_read_again(
    num_added: int, read: list[int], share: float, experiment_of: ExperimentOf
) -> None:
    """A step's documents take up to 50 ms, and a training may have a million steps."""
    num_steps = 1000 + num_added
    experiment = experiment_of({"training.num_steps": num_steps, "training.num_warmup_steps": 1})
    before = [DoneStep.of(STEP)._replace(step=step, num_steps=num_steps, warmup=step < 2) for step in range(1, 1001)]
    asked = list[int]()

    def share_of(step: int) -> float:
        asked.append(step)
        return 0.5 if step > 1000 else 0.25

    world = World(0, 1, torch.device("cpu"), "gloo")
    meter = Meter(experiment, world, Axis(), history=before, done=1000, attended_share=share_of)
    for step in range(1001, num_steps + 1):
        meter.time_step(step, lambda: StepResult(1.0, 1.0, 0.1))
    expected = model_flops(experiment.model, experiment.batch.global_batch_size, DoneShares(attended=share))
    assert meter.performance().model_flops == expected
    assert asked == read


@pytest.mark.parametrize(
    ("added", "timed"),
    [
        pytest.param([9.0, 2.0, 2.0, 2.0], 3, id="the first of them warms up"),
        pytest.param([9.0], 1, id="where there is no more, the warm-up step itself"),
    ],
)
def test_an_extended_training_is_timed_by_the_steps_that_were_added(
    added: list[float], timed: int, experiment_of: ExperimentOf
) -> None:
    before = [DoneStep.of(STEP)._replace(step=step, num_steps=4, step_seconds=1.0) for step in range(1, 5)]
    experiment = experiment_of({"training.num_steps": 4 + len(added), "training.num_warmup_steps": 1})
    meter = Meter(experiment, World(0, 1, torch.device("cpu"), "gloo"), Axis(), history=before, done=4)
    for step in range(5, 5 + len(added)):
        meter.time_step(step, lambda: StepResult(1.0, 1.0, 0.1))
    meter.steps[4:] = [
        step._replace(step_seconds=seconds) for step, seconds in zip(meter.steps[4:], added, strict=True)
    ]
    performance = meter.performance()
    assert performance.num_timed_steps == timed
    assert performance.step_seconds == added[-1]
    assert len(performance.losses) == 4 + len(added)


def test_a_step_that_was_done_takes_few_bytes(experiment_of: ExperimentOf) -> None:
    """A training may have a million of them, and a node eight ranks."""
    meter = Meter(experiment_of({"training.num_steps": 400}), World(0, 1, torch.device("cpu"), "gloo"), Axis())
    for step in range(1, 201):  # what has a bound is full by then
        meter.time_step(step, lambda: StepResult(1.0, 1.0, 0.1))
    tracemalloc.start()
    for step in range(201, 401):
        meter.time_step(step, lambda: StepResult(1.0, 1.0, 0.1))
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_bytes / 200 < 600
