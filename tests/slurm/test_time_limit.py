"""The end that takes a minute: a time limit. Runs late, because its job was started with those of `test_ends`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from conf.types.sites import SlurmSpec
from launcher.cancel import cancel_sweep
from sweeps.sweep import Sweep
from tests.launcher.points_alone import submit_points
from tests.slurm.conftest import Ending, StateOf
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_a_job_at_its_time_limit_is_timed_out_and_not_a_failure_of_the_program(state_of: StateOf) -> None:
    state = state_of("runs too long", 120)
    assert state.outcome is Outcome.TIMED_OUT, state
    assert "time limit" in state.cause


def test_only_what_was_cancelled_runs_again_unless_failures_are_to_be_retried(
    ending: Ending, slurm: SlurmSpec, state_of: StateOf
) -> None:
    folder, record, ends = ending
    for end in ends:
        state_of(end, 120)

    def quick(folder: str) -> None:
        Path(folder, "ran").write_text(str(time.time()))

    summary = submit_points(Sweep(folder, record), slurm, job=quick)
    assert (summary.num_submitted, len(summary.kept)) == (1, len(ends) - 1)
    assert summary.arrays[0].trial_ids == (record.trials[ends.index("is cancelled")].trial_id,)
    retried = submit_points(Sweep(folder, record), slurm, retry_failed=True, job=quick)
    assert (retried.num_submitted, retried.num_live) == (5, 1)
    assert cancel_sweep(Sweep(folder, record)) >= 0
