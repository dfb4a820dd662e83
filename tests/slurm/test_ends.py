"""Every way a job ends without writing its own measurement, told apart. All run at once in one job array."""

from __future__ import annotations

import subprocess

import pytest

from sweeps.folder.submission import read_submission
from tests.slurm.conftest import Ending, StateOf, WaitUntil
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_a_raising_rank_ends_the_job_at_once_and_its_own_traceback_is_the_cause(state_of: StateOf) -> None:
    state = state_of("raises")
    assert (state.outcome, state.failing_rank) == (Outcome.FAILED, 1)
    assert state.cause == "ValueError: the data of rank 1 is bad"
    assert "raise ValueError" in (state.traceback or "")


def test_the_culprit_is_named_and_not_the_peer_that_lost_its_connection(state_of: StateOf) -> None:
    state = state_of("loses its peer")
    assert (state.failing_rank, state.cause) == (1, "ValueError: the data of rank 1 is bad")


def test_a_killed_rank_is_named_with_its_signal(state_of: StateOf) -> None:
    state = state_of("is killed")
    assert (state.outcome, state.failing_rank) == (Outcome.FAILED, 1)
    assert state.cause == "rank 1 was killed by signal 9"


def test_a_rank_that_exits_without_a_word_is_named_with_its_exit_code(state_of: StateOf) -> None:
    state = state_of("exits")
    assert (state.outcome, state.failing_rank) == (Outcome.FAILED, 1)
    assert "exit code 7" in state.cause


def test_a_job_over_its_memory_is_out_of_memory_whatever_slurm_calls_it(state_of: StateOf) -> None:
    state = state_of("takes too much memory")
    assert state.outcome is Outcome.OUT_OF_MEMORY, state


def test_a_job_cancelled_by_hand_is_cancelled(ending: Ending, state_of: StateOf, wait_until: WaitUntil) -> None:
    folder, record, ends = ending
    index = ends.index("is cancelled")
    wait_until(folder, record, lambda states: states[index].scheduler_state == "RUNNING")
    submission = read_submission(folder.trial(record.trials[index].trial_id))
    assert submission is not None
    assert submission.job_id is not None
    subprocess.run(["scancel", submission.job_id], check=True)
    assert state_of("is cancelled").outcome is Outcome.CANCELLED
