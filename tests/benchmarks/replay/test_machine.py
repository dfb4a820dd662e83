"""A made-up machine: the same truth whoever asks and in whatever company, and no measurement of anything."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.replay.machine import InventedMachine
from benchmarks.replay.run import replay_trial
from conf.plan.experiment import Experiment
from costs import STEP_TERMS, estimate
from costs.estimate import plan_of, setting_of
from costs.setting import Plans
from tests.composed import load
from train_core.trial.measurement import Measurement, Outcome

SWEEP = ["sweep=175b", "profile=breakdown"]


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return load(SWEEP).experiment()


def test_the_same_plan_meets_the_same_truth_alone_and_among_others(experiment: Experiment) -> None:
    other = load([*SWEEP, "batch.micro_batch_size=2"]).experiment()
    setting, machine = setting_of(experiment), InventedMachine(seed=3)
    alone = [machine.truth(setting, plan_of(one)) for one in (experiment, other)]
    pairs = {
        name: np.concatenate([getattr(plan_of(one), name) for one in (experiment, other)]) for name in Plans.__slots__
    }
    together = machine.truth(setting, Plans(**pairs))
    assert together.step_seconds.tolist() == pytest.approx([float(one.step_seconds[0]) for one in alone])
    assert together.peak_memory_bytes.tolist() == pytest.approx([float(one.peak_memory_bytes[0]) for one in alone])


def test_machines_of_different_seeds_differ_and_those_of_one_seed_do_not(experiment: Experiment) -> None:
    first, again, other = (replay_trial(InventedMachine(seed), experiment) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_two_measurements_of_one_plan_differ_by_noise_alone(experiment: Experiment) -> None:
    seconds = [_seconds(replay_trial(InventedMachine(5), experiment, repeat)) for repeat in range(20)]
    assert len(set(seconds)) == 20
    assert 0.005 < np.std(np.log(seconds)) < 0.05


def test_a_machine_without_any_spread_is_the_cost_model(experiment: Experiment) -> None:
    exact = InventedMachine(seed=0, constants=0, smooth=0, kinds=0, kernels=0, memory=0, noise=0)
    predicted = estimate(experiment)
    truth = exact.truth(setting_of(experiment), plan_of(experiment))
    assert float(truth.peak_memory_bytes[0]) == pytest.approx(predicted.peak_memory_bytes)
    # Only what the machine hides behind computation is left, which makes it no slower.
    for name in STEP_TERMS:
        assert getattr(truth.terms, name)[0] <= getattr(predicted.step_terms, name) * (1 + 1e-9)


def test_a_plan_beyond_capacity_ends_out_of_memory_and_says_by_how_much() -> None:
    crowded = load([*SWEEP, "parallel.recompute=none", "batch.micro_batch_size=4"]).experiment()
    assert not estimate(crowded).fits
    ended = replay_trial(InventedMachine(0), crowded)
    assert ended.outcome is Outcome.OUT_OF_MEMORY
    assert ended.performance is None
    assert "GiB over capacity" in ended.cause


def test_a_replay_says_of_itself_that_it_is_one(experiment: Experiment) -> None:
    ended = replay_trial(InventedMachine(1), experiment)
    assert ended.outcome is Outcome.COMPLETED
    assert ended.performance is not None
    assert "replayed" in ended.performance.peak_source
    assert ended.performance.breakdown is not None


def _seconds(measurement: Measurement) -> float:
    assert measurement.performance is not None
    return measurement.performance.step_seconds
