"""What trials cost, and which limit is the tightest."""

from __future__ import annotations

import pytest

from conf.control import UNLIMITED_BUDGET, BudgetSpec
from conf.errors import ConfigError
from launcher.control.budget import Budget, predicted_seconds
from sweeps.points.plan import trial_of
from sweeps.trial import Trial
from tests.composed import compose_tree, load

LIMIT_SECONDS = 1800.0


@pytest.fixture(scope="module")
def trial() -> Trial:
    """One node of eight devices, which are charged together or one by one."""
    tree = compose_tree(["sweep=smoke", "cluster=frontier", "parallel.world_size=4", "precision=bf16"])
    return trial_of(tree, {"parallel.tensor_parallel_size": 4}, "the test wants it")


def budget(**limits: float) -> Budget:
    chosen = UNLIMITED_BUDGET.model_copy(update=limits)
    return Budget(BudgetSpec.model_validate(chosen.model_dump()), load(["slurm=default"]).slurm, LIMIT_SECONDS)


def test_nothing_is_held_back_without_a_limit(trial: Trial) -> None:
    assert budget().limit_on(trial) is None
    assert budget().why_not(trial, 1e12) == ""


def test_a_trial_counts_with_its_time_limit_until_it_has_ended_and_then_with_what_it_took(trial: Trial) -> None:
    devices = budget().num_devices(trial)
    assert budget().at_most(trial) == devices * LIMIT_SECONDS
    assert budget().took(trial, 60.0) == devices * 60.0
    assert budget().took(trial, 7 * LIMIT_SECONDS) == budget().at_most(trial), "it waited in the queue"
    assert Budget(UNLIMITED_BUDGET, None, None).at_most(trial) == 4 * predicted_seconds(trial)


def test_money_and_energy_are_compared_with_device_hours_and_the_tightest_counts(trial: Trial) -> None:
    assert trial.experiment is not None
    watts = trial.experiment.cluster.device.watts
    both = budget(device_hours=10.0, energy_kwh=9.0 * watts / 1000)
    limit = both.limit_on(trial)
    assert limit is not None
    assert limit.device_seconds == pytest.approx(9.0 * 3600)
    assert limit.words.startswith("budget.energy_kwh = ")
    assert "leaves 0 device-hours" in both.why_not(trial, 9.0 * 3600)


def test_dollars_cannot_be_held_where_the_device_has_no_price(trial: Trial) -> None:
    with pytest.raises(ConfigError, match=r"budget\.dollars = 5\.0: cannot be held: frontier names no price"):
        budget(dollars=5.0).limit_on(trial)


def test_what_might_not_be_over_before_the_deadline_does_not_start(trial: Trial) -> None:
    limited = budget(deadline_hours=1.0)
    assert limited.why_too_late(0.0, 1799.0, LIMIT_SECONDS) == ""
    assert "leaves 29.9 minutes" in limited.why_too_late(0.0, 1806.0, LIMIT_SECONDS)
    assert not limited.is_past_deadline(0.0, 3599.0)
    assert limited.is_past_deadline(0.0, 3601.0)
