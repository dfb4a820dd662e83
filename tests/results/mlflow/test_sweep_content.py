"""The metrics of a trial's run, as they follow from what it left."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from results.mlflow.metric_keys import step_metrics
from results.mlflow.sweep_content import sweep_runs
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import BuildRecord
from tests.results.conftest import WriteSweep, performance, trial
from tests.steps import STEP


@pytest.mark.parametrize(("num_devices", "is_compared"), [(2, True), (1, False)])
def test_a_step_of_ranks_that_shared_a_device_has_no_error_of_the_prediction(
    write_sweep: WriteSweep, num_devices: int, is_compared: bool
) -> None:
    member = trial("two", world_size=2, tensor_parallel_size=2)
    sweep = write_sweep([member], {"two": performance(100.0, num_devices)})
    _, run = sweep_runs(sweep.record, sweep.read())
    keys = {metric.key for metric in run.metrics}
    assert "meas/step_s" in keys
    assert ("error/step_pct" in keys) is is_compared


def test_what_another_program_does_not_tell_of_a_step_is_no_metric() -> None:
    untold = step_metrics(STEP.model_copy(update={"gradient_norm": math.nan, "learning_rate": math.nan}))
    assert untold.keys() == step_metrics(STEP).keys() - {"step/grad_norm", "step/lr"}
    assert math.isnan(step_metrics(STEP.model_copy(update={"loss": math.nan}))["step/loss"])


def test_figures_of_data_keep_their_names_beside_the_metrics_of_a_step() -> None:
    figures = {"eval/books/loss": 4.5, "data/web/tokens": 96.0}
    step = STEP.model_copy(update={"figures": figures})
    assert step_metrics(step) == step_metrics(STEP) | figures
    assert step_metrics(step, is_own=False) == {f"step/{name}": value for name, value in figures.items()}


def test_a_point_that_leaves_a_key_has_the_value_of_the_configuration(
    tmp_path: Path, build_record: BuildRecord
) -> None:
    program = ["trainer=command", "trainer.command=[fit.py]", "+trainer.flags={width:8}"]
    record = build_record([{}, {"trainer.flags.width": 16}], program)
    runs = list(sweep_runs(record, Sweep(SweepFolder(tmp_path / "own"), record).read()))
    assert [run.params["trainer.flags.width"] for run in runs[1:]] == ["8", "16"]
