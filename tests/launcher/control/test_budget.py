"""What trials cost, and which limit is the tightest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from conf.compose.settings import UNLIMITED_BUDGET, BudgetSpec
from conf.errors import ConfigError
from launcher.control.attempts import news
from launcher.control.rules import Admission, Budget, predicted_seconds
from sweeps.folder.journal import Ended, History
from sweeps.folder.submission import Submission, write_submission
from sweeps.points.plan import trial_of
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial
from tests.composed import compose_tree, load
from tests.conftest import RecordOf
from tests.messages import refused
from train_core.job.failures import failed_measurement
from train_core.trial.measurement import Outcome, RankFailure

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
    assert budget().most_device_seconds(trial) == devices * LIMIT_SECONDS
    assert budget().device_seconds(trial, 60.0) == devices * 60.0
    assert budget().device_seconds(trial, 7 * LIMIT_SECONDS) == budget().most_device_seconds(trial), (
        "it waited in the queue"
    )
    assert Budget(UNLIMITED_BUDGET, None, None).most_device_seconds(trial) == 4 * predicted_seconds(trial)


def test_every_run_of_a_job_that_slurm_started_again_is_charged(
    folder: SweepFolder, record_of: RecordOf, slurm_submission: Callable[..., Submission]
) -> None:
    sweep = Sweep(folder, record_of([{"training.seed": 1}]))
    sweep.prepare(sweep.record.trials[0])
    (reading,) = sweep.read()
    assert reading.experiment is not None
    submitted = time.time() - 1000
    write_submission(reading.folder, slurm_submission("7", submitted=submitted))
    # The last of three runs took 100 of the 1,000 seconds since the job was submitted.
    told = RankFailure(rank=0, outcome=Outcome.FAILED, cause="broke", traceback="", time=1.0)
    ended = failed_measurement(reading.experiment.fingerprint, told, submitted + 900)
    reading.folder.write_measurement(ended.model_copy(update={"ended": submitted + 1000}))
    own = Budget(UNLIMITED_BUDGET, None, 400.0)
    for claim, charged in (("1.0", 100.0), ("1.1", 800.0), ("1.2", 1000.0), ("0.9", 100.0)):
        reading.folder.claim.write_text(claim)
        (again,) = sweep.read()
        (entry,) = [each for each in news(again, History.of([]), own) if isinstance(each, Ended)]
        assert entry.device_seconds == pytest.approx(charged, abs=1.0), claim
    flying = replace(again)
    reading.folder.claim.write_text("1.2")
    trial = reading.trial
    limited = Budget(BudgetSpec(**UNLIMITED_BUDGET.model_dump() | {"device_hours": 1500 / 3600}), None, 400.0)
    assert not Admission(limited, History.of([]), None, [flying]).admits(trial), "its three runs may take 1,200 s"
    reading.folder.claim.write_text("1.0")
    assert Admission(limited, History.of([]), None, [flying]).admits(trial)


def test_money_and_energy_are_compared_with_device_hours_and_the_tightest_counts(trial: Trial) -> None:
    assert trial.experiment is not None
    watts = trial.experiment.cluster.device.watts
    both = budget(device_hours=10.0, energy_kwh=9.0 * watts / 1000)
    limit = both.limit_on(trial)
    assert limit is not None
    assert limit[0] == pytest.approx(9.0 * 3600)
    assert limit[1].startswith("budget.energy_kwh = ")
    assert "leaves 0 device-hours" in both.why_not(trial, 9.0 * 3600)


def test_dollars_cannot_be_held_where_the_device_has_no_price(trial: Trial) -> None:
    with refused(ConfigError, "budget.dollars"):
        budget(dollars=5.0).limit_on(trial)


def test_what_might_not_be_over_before_the_deadline_does_not_start(trial: Trial) -> None:
    limited = budget(deadline_hours=1.0)
    assert limited.why_too_late(0.0, 1799.0, LIMIT_SECONDS) == ""
    assert "leaves 29.9 minutes" in limited.why_too_late(0.0, 1806.0, LIMIT_SECONDS)
    assert not limited.is_past_deadline(0.0, 3599.0)
    assert limited.is_past_deadline(0.0, 3601.0)
