"""A verdict names the node of the rank that it blames, whichever rank wrote it down; with real processes."""

from __future__ import annotations

import pytest

from conf.errors import TrainingError
from tests.train_core.conftest import AtStep, TrialOf
from train_core.job.failures import failure_of
from train_core.job.trial import run_trial_here
from train_core.training.trainer import Trainer
from train_core.trial.measurement import Fault

THREE = {
    "parallel.world_size": 3,
    "batch.global_batch_size": 6,
    "training.num_steps": 100_000,
    "watch.hang_seconds": 60.0,
}


def damage_master(trainer: Trainer) -> None:
    trainer.optimizer.states[0].masters[5] = float("nan")


@pytest.mark.slow
@pytest.mark.usefixtures("a_node_for_each_rank")
def test_a_weight_gone_bad_is_the_hardwares_fault_on_the_node_of_its_rank(trial_of: TrialOf, at_step: AtStep) -> None:
    """All ranks say so together; such a trial is tried once more on another node."""
    at_step(1, 2, damage_master)
    told = run_trial_here(trial_of(THREE).path)
    assert "suspect the device of rank 1" in told.cause
    assert (told.failing_rank, told.nodes, told.fault) == (1, ("node1",), Fault.HARDWARE)


def test_an_error_whose_remedy_is_another_setting_is_the_users() -> None:
    assert failure_of(0, TrainingError("it diverged", "Lower training.learning_rate.", None)).fault is Fault.INPUT
    assert failure_of(0, TrainingError("it diverged", "Lower training.learning_rate.", None)).node == ""


def test_whoever_writes_it_down_the_rank_is_blamed_that_the_error_names() -> None:
    assert failure_of(0, TrainingError("a loss is not a number", "Try another node.", 3)).blamed == 3
