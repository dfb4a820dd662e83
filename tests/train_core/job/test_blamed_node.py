"""A verdict names the node of the rank that it blames, whichever rank wrote it down; with real processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from conf.errors import TrainingError
from tests.train_core.conftest import TrialOf
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
At = Callable[[int, Callable[[Trainer], None]], None]


@pytest.fixture(autouse=True)
def a_node_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are forked, so they inherit the patch."""

    def join(seat: Seat, *rest: Any) -> World:
        monkeypatch.setattr(world_module, "this_node", lambda: f"node{seat.rank}")
        return world_module.join(seat, *rest)

    monkeypatch.setattr("train_core.job.rank.join", join)


@pytest.fixture
def at_second_step(monkeypatch: pytest.MonkeyPatch) -> At:
    """Have one rank do something before its second step."""

    def arrange(rank: int, act: Callable[[Trainer], None]) -> None:
        undisturbed = Trainer.step

        def disturbed(self: Trainer, number: int, *rest: Any) -> Any:
            if (self.mesh.world.rank, number) == (rank, 2):
                act(self)
            return undisturbed(self, number, *rest)

        monkeypatch.setattr(Trainer, "step", disturbed)

    return arrange


def sleep_for_ever(trainer: Trainer) -> None:
    time.sleep(600)


def damage_master(trainer: Trainer) -> None:
    trainer.optimizer.states[0].masters[5] = float("nan")


@pytest.mark.slow
def test_a_hang_names_the_node_of_the_rank_that_is_missing(trial_of: TrialOf, at_second_step: At) -> None:
    at_second_step(1, sleep_for_ever)
    told = run_trial_here(trial_of(THREE).path)
    assert (told.outcome, told.failing_rank, told.nodes) == (Outcome.FAILED, 1, ("node1",))


@pytest.mark.slow
def test_a_weight_gone_bad_is_the_hardwares_fault_on_the_node_of_its_rank(
    trial_of: TrialOf, at_second_step: At
) -> None:
    """All ranks say so together; such a trial is tried once more on another node."""
    at_second_step(1, damage_master)
    told = run_trial_here(trial_of(THREE).path)
    assert "suspect the device of rank 1" in told.cause
    assert (told.failing_rank, told.nodes, told.fault) == (1, ("node1",), Fault.HARDWARE)


def test_an_error_whose_remedy_is_another_setting_is_the_users() -> None:
    assert failure_of(0, TrainingError("it diverged", "Lower training.learning_rate.", None)).fault is Fault.INPUT
    assert failure_of(0, TrainingError("it diverged", "Lower training.learning_rate.", None)).node == ""
