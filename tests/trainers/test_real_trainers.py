"""What a sweep has of a trainer that is somebody else's: its steps, its end, its checkpoints, MLflow and a report."""

from __future__ import annotations

import math

import pytest

from conf.types.sites import TrackingSpec
from results.mlflow.store import connect
from tests.trainers.conftest import Swept, words_of
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.trainers, pytest.mark.slow, pytest.mark.timeout(6000)]


def test_each_layout_is_measured(swept: Swept) -> None:
    layouts = swept.readings[:-1]
    assert [reading.outcome for reading in layouts] == [Outcome.COMPLETED] * 3, [each.cause for each in layouts]
    for reading in layouts:
        performance = reading.performance
        assert performance is not None
        assert performance.tokens_per_second > 0
        assert all(map(math.isfinite, performance.losses))
        assert min(performance.peak_memory_bytes) > 100 * 2**20
        assert reading.steps[-1].step == swept.trainer.num_steps


def test_layouts_of_one_model_have_nearly_one_loss(swept: Swept) -> None:
    losses = [reading.performance.final_loss for reading in swept.readings[:-1] if reading.performance]
    assert max(losses) - min(losses) < 0.3, losses


def test_what_was_interrupted_goes_on_from_the_trainers_own_checkpoint(swept: Swept) -> None:
    interrupted, *others = swept.readings[:-1]
    assert swept.interrupted_at < swept.trainer.num_steps
    assert interrupted.measurement is not None
    began = interrupted.measurement.started
    saved = next(metrics.step for metrics in interrupted.steps if metrics.time >= began) - 1
    assert saved % swept.trainer.saved_every == 0
    assert swept.trainer.saved_every <= saved <= swept.interrupted_at + 1
    assert [reading.steps[0].step for reading in (interrupted, *others)] == [1, 1, 1]
    assert interrupted.performance is not None
    assert interrupted.performance.recorded_steps == [metrics.step for metrics in interrupted.steps]


def test_a_model_that_is_too_large_is_out_of_memory(swept: Swept) -> None:
    reading = swept.readings[-1]
    assert reading.outcome is Outcome.OUT_OF_MEMORY, reading.cause
    assert "allocate" in reading.cause
    assert reading.failing_rank in (0, 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # MLflow's own
def test_mlflow_has_the_measurements(swept: Swept) -> None:
    client = connect(TrackingSpec(kind="sqlite", uri=None, experiment="trisweep"), swept.output_dir)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = {run.data.tags.get("trial_id"): run.data.metrics for run in client.search_runs(experiments)}
    for reading in swept.readings[:-1]:
        metrics = runs[reading.name]
        assert metrics["meas/tok_per_s"] > 0, metrics
        assert metrics["meas/step_s"] > 0, metrics


def test_the_report_names_the_trainer_and_what_failed(swept: Swept) -> None:
    report = words_of((swept.folder.path / "report.md").read_text())
    assert f"{swept.trainer.preset}, read from its log; FLOPs by our formula" in report
    assert "3 measured, 1 out of memory" in report
