"""What ranks use, sampled every few seconds and put together."""

from __future__ import annotations

import math
import time

import pytest
import torch

from tests.audit import audited
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.optimizers.optimizer import StepResult
from train_core.parallel.collectives import Axis
from train_core.process.world import World
from train_core.training.meter import Meter
from train_core.trial.measurement import StepMetrics, SystemUse
from train_core.watch.energy_counters import EnergyCounter
from train_core.watch.energy_meter import EnergyMeter
from train_core.watch.sampler import NOT_DUE, SAMPLE_SECONDS, SystemSampler

CPU = torch.device("cpu")
NAN = math.nan
GIBIBYTE = 2.0**30


@pytest.fixture
def alone() -> SystemSampler:
    return SystemSampler(World(0, 1, CPU, "gloo"), Axis(), num_steps=100)


def test_short_steps_are_sampled_together_and_the_last_one_always_is(alone: SystemSampler) -> None:
    without = EnergyMeter(CPU, [])
    sampled = [step for step in range(1, 101) if alone.combine([alone.read(step, without)], SAMPLE_SECONDS / 8)]
    assert sampled == [*range(9, 98, 8), 100]


def test_every_step_is_sampled_that_is_long(alone: SystemSampler) -> None:
    without = EnergyMeter(CPU, [])
    sampled = [step for step in range(1, 6) if alone.combine([alone.read(step, without)], SAMPLE_SECONDS)]
    assert sampled == [2, 3, 4, 5]


def test_cores_are_those_that_this_process_keeps_busy(alone: SystemSampler) -> None:
    began = time.process_time()
    while time.process_time() < began + 0.1:
        math.sqrt(2.0)
    worked = alone.read(100, EnergyMeter(CPU, []))[3]
    time.sleep(0.1)
    slept = alone.read(100, EnergyMeter(CPU, []))[3]
    assert worked > 2 * slept
    assert slept < 0.5


def test_the_resident_memory_is_that_of_this_process(alone: SystemSampler) -> None:
    before = alone.read(100, EnergyMeter(CPU, []))[4]
    held = torch.ones(2**24)
    after = alone.read(100, EnergyMeter(CPU, []))[4]
    assert after - before == pytest.approx(held.numel() * 4, rel=0.3)


def test_power_is_the_energy_since_the_last_sample_over_its_time(alone: SystemSampler) -> None:
    joules = iter([100.0, 130.0, 190.0])
    energy = EnergyMeter(CPU, [EnergyCounter("socket", "RAPL", "device", lambda: next(joules))])
    assert math.isnan(alone.read(100, energy)[2]), "warm-up: nothing is counted yet"
    energy.begin()
    for gained in (30.0, 60.0):
        time.sleep(0.02)
        before = energy.seconds
        energy.follow()
        assert alone.read(100, energy)[2] == pytest.approx(gained / (energy.seconds - before))


def test_of_all_ranks_it_is_the_mean_the_fullest_or_the_sum(alone: SystemSampler) -> None:
    first, second = [90.0, 3 * GIBIBYTE, 300.0, 1.0, 2 * GIBIBYTE], [70.0, 4 * GIBIBYTE, 250.0, 0.5, GIBIBYTE]
    assert alone.combine([first, second], 1.0) == SystemUse(
        device_busy_percent=80.0,
        device_memory_bytes=4 * 2**30,
        device_watts=550.0,
        cpu_cores=1.5,
        resident_bytes=2 * 2**30,
    )


def test_where_one_rank_knows_nothing_of_its_device_nothing_is_said_of_the_devices(alone: SystemSampler) -> None:
    first, second = [90.0, 3 * GIBIBYTE, 300.0, 1.0, 2 * GIBIBYTE], [NAN, NAN, NAN, 0.5, GIBIBYTE]
    assert alone.combine([first, second], 1.0) == SystemUse(cpu_cores=1.5, resident_bytes=2 * 2**30)


def counted_by(world: World) -> list[float]:
    """Each rank reads the same counter, which gains 50 J."""
    joules = iter([100.0, 150.0])
    energy = EnergyMeter(CPU, [EnergyCounter("socket", "RAPL", "device", lambda: next(joules))])
    sampler = SystemSampler(world, Axis(world.size, world.rank), num_steps=1)
    energy.begin()
    energy.follow()
    return sampler.read(1, energy)


def test_ranks_of_one_machine_count_its_sockets_once(worlds: Worlds) -> None:
    first, second = worlds(2).run(counted_by)
    assert first[2] > 0
    assert second[2] == 0.0


def test_steps_say_what_was_used(experiment_of: ExperimentOf) -> None:
    meter = Meter(experiment_of({"training.num_steps": 3}), World(0, 1, CPU, "gloo"), Axis())
    steps = [meter.time_step(step, lambda: StepResult(1.0, 1.0, 0.1)) for step in (1, 2, 3)]
    assert [step.system is None for step in steps] == [True, True, False]
    used = steps[-1].system
    assert used is not None
    assert used.resident_bytes is not None
    assert used.resident_bytes > 2**20
    assert StepMetrics.model_validate_json(steps[-1].model_dump_json()) == steps[-1]


def test_a_step_that_is_not_sampled_reads_no_file(alone: SystemSampler) -> None:
    energy = EnergyMeter(CPU, [])
    with audited("open", "os.listdir", "os.scandir", "subprocess.Popen") as accesses:
        for _ in range(1000):
            assert alone.read(1, energy) is NOT_DUE
    assert accesses == []
    with audited("open") as accesses:
        alone.read(100, energy)
    assert accesses
