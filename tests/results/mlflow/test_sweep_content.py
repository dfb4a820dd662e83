"""The metrics of a trial's run, as they follow from what it left."""

from __future__ import annotations

import pytest

from results.mlflow.sweep_content import sweep_runs
from tests.results.conftest import WriteSweep, performance, trial


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
