"""A verdict names the node of the rank that it blames, whichever rank wrote it down; with real processes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from conf.errors import TrainingError
from tests.train_core.conftest import AtStep, TrialOf
from train_core.job.failures import failure_of
from train_core.job.trial import run_trial_here
from train_core.measurement import Fault, Outcome
from train_core.process import world as world_module
from train_core.process.world import Seat, World
from train_core.training.trainer import Trainer

THREE = {
    "parallel.world_size": 3,
    "batch.global_batch_size": 6,
    "training.num_steps": 100_000,
    "watch.hang_seconds": 3.0,
}


@pytest.fixture(autouse=True)
def a_node_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are forked, so they inherit the patch."""

    def join(seat: Seat, *rest: Any) -> World:
        monkeypatch.setattr(world_module, "this_node", lambda: f"node{seat.rank}")
        return world_module.join(seat, *rest)

    monkeypatch.setattr("train_core.job.rank.join", join)


def sleep_for_ever(trainer: Trainer) -> None:
    time.sleep(600)


def damage_master(trainer: Trainer) -> None:
    trainer.optimizer.states[0].masters[5] = float("nan")


@pytest.mark.slow
def test_a_hang_names_the_node_of_the_rank_that_is_missing(trial_of: TrialOf, at_step: AtStep) -> None:
    at_step(1, 2, sleep_for_ever)
    told = run_trial_here(trial_of(THREE).path)
    assert (told.outcome, told.failing_rank, told.nodes) == (Outcome.FAILED, 1, ("node1",))


@pytest.mark.slow
def test_a_weight_gone_bad_is_the_hardwares_fault_on_the_node_of_its_rank(trial_of: TrialOf, at_step: AtStep) -> None:
    """All ranks say so together; such a trial is tried once more on another node."""
    at_step(1, 2, damage_master)
    told = run_trial_here(trial_of(THREE).path)
    assert "suspect the device of rank 1" in told.cause
    assert (told.failing_rank, told.nodes, told.fault) == (1, ("node1",), Fault.HARDWARE)


def test_an_error_whose_remedy_is_another_setting_is_the_users() -> None:
    assert failure_of(0, TrainingError("it diverged", "Lower training.learning_rate.", None)).fault is Fault.INPUT
    assert failure_of(0, TrainingError("it diverged", "Lower training.learning_rate.", None)).node == ""
