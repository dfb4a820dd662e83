"""Counters of all ranks together, each counted once; and what a training says of its energy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.train_core.conftest import ExperimentOf, Worlds
from tests.train_core.watch.hosts import Host, two_sockets
from train_core.optimizers.optimizer import StepResult
from train_core.parallel.collectives import Axis
from train_core.process.world import World
from train_core.training.meter import Meter
from train_core.watch.energy_counters import EnergyCounter, rapl_counters
from train_core.watch.energy_meter import EnergyMeter, EnergyOfJob, PartPower

CPU = torch.device("cpu")


def counted_by(world: World, folder: Path) -> EnergyOfJob:
    """Two ranks read the sockets of their host; rank 0 moves the counter of one in between."""
    meter = EnergyMeter(CPU, rapl_counters("device", folder))
    axis = Axis(world.size, world.rank)
    meter.begin()
    meter.of_all_ranks(axis)  # all have begun
    if world.rank == 0:
        Host(folder).set("intel-rapl:0", 1500.0)
    meter.of_all_ranks(axis)  # the counter has moved
    meter.follow()
    return meter.of_all_ranks(axis)


def test_ranks_of_one_machine_count_its_sockets_once(worlds: Worlds, tmp_path: Path) -> None:
    two_sockets(tmp_path)
    first, second = worlds(2).run(counted_by, tmp_path)
    assert first == second
    assert len(first.parts) == 4
    assert first.is_whole
    assert (
        sum(part.watts > 0 for part in first.parts) == 1
    )  # how many watts depends on when a busy machine ran the rank
    assert (first.fields(2.0, 100).get("energy_source")) == "RAPL, 4 counters on 1 machine"


def test_energy_of_a_step_is_the_mean_power_times_its_seconds() -> None:
    parts = [
        PartPower("a", "GPU-1", "NVML", "device", 300.0, 60.0),
        PartPower("b", "GPU-2", "NVML", "device", 200.0, 50.0),
    ]
    parts += [PartPower("a", "package-0", "RAPL", "host", 100.0, None)]
    said = EnergyOfJob(parts, 30.0, is_whole=True).fields(step_seconds=4.0, tokens_per_step=1000)
    assert said == {
        "energy_joules_per_step": 2000.0,
        "energy_joules_per_token": 2.0,
        "energy_watts": 500.0,
        "energy_seconds": 30.0,
        "energy_source": "NVML, 2 counters on 2 machines",
        "energy_idle_watts": 110.0,
        "energy_host_joules_per_step": 400.0,
    }


def test_a_job_of_which_one_gpu_has_no_counter_says_nothing_of_its_devices() -> None:
    parts = [PartPower("a", "GPU-1", "NVML", "device", 300.0, None)]
    assert EnergyOfJob(parts, 30.0, is_whole=False).fields(4.0, 1000) == {}


def test_the_first_timed_step_starts_the_counters_and_warm_up_is_left_out(experiment_of: ExperimentOf) -> None:
    experiment = experiment_of({"training.num_steps": 4, "training.num_warmup_steps": 2})
    counter = SteppedCounter()
    meter = Meter(experiment, World(0, 1, CPU, "gloo"), Axis())
    meter.energy = EnergyMeter(CPU, [EnergyCounter("socket", "RAPL", "device", counter.read)])
    for step in (1, 2, 3, 4):
        meter.time_step(step, counter.step)
    performance = meter.performance()
    assert performance.energy_watts is not None
    assert performance.energy_seconds is not None
    assert performance.energy_watts * performance.energy_seconds == pytest.approx(2 * 50.0)
    assert performance.energy_joules_per_step == pytest.approx(performance.energy_watts * performance.step_seconds)
    assert performance.energy_idle_watts is None


def test_the_power_of_idle_devices_is_measured_where_asked_for() -> None:
    counter = SteppedCounter()
    meter = EnergyMeter(CPU, [EnergyCounter("socket", "RAPL", "device", counter.read_and_step)])
    meter.measure_idle(0.01)
    meter.begin()
    meter.follow()
    (part,) = meter.of_all_ranks(Axis()).parts
    assert part.idle_watts is not None
    assert 0 < part.idle_watts <= 50.0 / 0.01


def test_a_machine_without_counters_measures_no_energy(experiment_of: ExperimentOf) -> None:
    meter = Meter(experiment_of({}), World(0, 1, CPU, "gloo"), Axis())
    meter.energy = EnergyMeter(CPU, [])
    meter.time_step(1, lambda: StepResult(1.0, 1.0, 0.1))
    meter.time_step(2, lambda: StepResult(1.0, 1.0, 0.1))
    assert meter.performance().energy_joules_per_step is None
    assert meter.performance().energy_source is None


class SteppedCounter:
    """A counter that gains 50 J in every step."""

    def __init__(self) -> None:
        self.joules = 100.0

    def read(self) -> float:
        return self.joules

    def read_and_step(self) -> float:
        self.joules += 50.0
        return self.joules

    def step(self) -> StepResult:
        self.joules += 50.0
        return StepResult(1.0, 1.0, 0.1)
