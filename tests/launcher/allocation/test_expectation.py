"""How long a trial is expected to take, so that none is started in an allocation that ends before it."""

from __future__ import annotations

import pytest

from launcher.allocation.packing import START_SECONDS, Expectation
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.results.conftest import finish, performance


@pytest.fixture
def sweep(folder: SweepFolder, record_of: RecordOf) -> Sweep:
    """Two trials of three steps."""
    return Sweep(folder, record_of([{"training.seed": 0}, {"training.seed": 1}]))


def test_before_anything_was_measured_a_trial_takes_what_is_predicted_and_a_start(sweep: Sweep) -> None:
    trial = sweep.record.trials[0]
    assert trial.estimate is not None
    expected = Expectation.after(sweep.read(), limit_seconds=1e6)
    assert expected.seconds(trial) == pytest.approx(START_SECONDS + 3 * trial.estimate.step_seconds)


def test_what_was_measured_corrects_the_prediction(sweep: Sweep) -> None:
    finish(sweep.folder, sweep.record.trials[0], performance(25.6), started=1000.0, ended=1070.0)
    expected = Expectation.after(sweep.read(), limit_seconds=1e6)
    assert expected.start_seconds == pytest.approx(70 - 3 * 10)
    assert expected.seconds(sweep.record.trials[1]) == pytest.approx(70)


def test_no_trial_is_expected_to_take_longer_than_it_may(sweep: Sweep) -> None:
    assert Expectation.after(sweep.read(), limit_seconds=7.0).seconds(sweep.record.trials[0]) == 7.0
