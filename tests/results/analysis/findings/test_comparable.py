"""What of a prediction is held against what is measured."""

from __future__ import annotations

import pytest

from costs import estimate
from results.analysis.findings.comparable import memory_as_measured
from sweeps.trial import Trial
from tests.composed import load


@pytest.mark.parametrize("cluster", ["frontier", "local"])
def test_a_gpus_allocator_is_held_against_tensors_alone_and_a_process_against_all(cluster: str) -> None:
    experiment = load(["model=tiny", f"cluster={cluster}"]).experiment()
    predicted = estimate(experiment)
    trial = Trial(
        trial_id="one",
        point={},
        experiment=experiment,
        estimate=predicted,
        selected=True,
        is_baseline=True,
    )
    fullest = predicted.stages[predicted.worst_stage]
    reserved = 0 if cluster == "local" else fullest.reserved_bytes
    assert fullest.reserved_bytes > 0
    assert memory_as_measured(trial) == predicted.peak_memory_bytes - reserved
