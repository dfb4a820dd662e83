"""Traces of chosen steps and ranks; what cannot be traced is refused before anything runs."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from conf.errors import InfeasiblePlan
from tests.messages import refused
from tests.train_core.conftest import ExperimentOf, TrialOf
from train_core.job.trial import run_trial_here

TRACED = {"training.num_steps": 4, "training.num_warmup_steps": 1, "profile.trace_steps": [2]}


@pytest.mark.slow
def test_a_traced_step_leaves_a_chrome_trace_and_is_not_timed(trial_of: TrialOf) -> None:
    trial = trial_of(TRACED | {"profile.trace_ranks": [1], "parallel.world_size": 2})
    performance = run_trial_here(trial.path).performance
    assert performance is not None
    assert performance.num_timed_steps == 2
    assert [path.name for path in trial.traces.iterdir()] == ["step-000002-rank-00001.json.gz"]
    with gzip.open(next(trial.traces.iterdir())) as file:
        events = json.load(file)["traceEvents"]
    assert any("addmm" in event.get("name", "") for event in events)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"profile.trace_ranks": [0, 2], "parallel.world_size": 2}, "profile.trace_ranks"),
        ({"profile.trace_steps": [2, 5], "profile.trace_ranks": [0]}, "profile.trace_steps"),
        ({}, "profile.trace_steps"),
        ({"profile.trace_steps": [2, 3, 4], "profile.trace_ranks": [0]}, "profile.trace_steps"),
    ],
)
def test_a_trace_that_cannot_be_is_refused(experiment_of: ExperimentOf, values: dict[str, Any], key: str) -> None:
    with refused(InfeasiblePlan, key):
        experiment_of(TRACED | values)
