"""Every way a job ends without writing its own measurement, told apart. All run at once in one job array."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from conf.schema import SlurmSpec
from launcher.cancel import cancel_sweep
from launcher.submission import read_submission
from launcher.sweep import submit
from sweeps.trial import SweepFolder
from train_core.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("cluster")]
ENDS = ["raises", "loses its peer", "is killed", "takes too much memory", "is cancelled", "runs too long", "exits"]


def make_job(ends):
    """A job that ends as the trial's seed says. Defined here, so that it travels by value: nodes know no tests."""

    def job(folder):
        import json
        import os
        import signal
        import time
        from pathlib import Path

        from train_core.failures import failure_of
        from train_core.trial_folder import TrialFolder

        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        rank = int(os.environ["SLURM_PROCID"])
        seed = json.loads(Path(folder, "trial.json").read_text())["experiment"]["training"]["seed"]
        end = ends[seed]
        if rank == 1 and end in ("raises", "loses its peer"):
            if end == "loses its peer":
                time.sleep(0.5)
            try:
                raise ValueError("the data of rank 1 is bad")
            except ValueError as error:
                TrialFolder(folder).write_failure(failure_of(rank, error))
                raise
        if rank == 0 and end == "loses its peer":
            error = RuntimeError("Connection closed by peer")
            TrialFolder(folder).write_failure(failure_of(rank, error))
        if rank == 1 and end == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1 and end == "exits":
            os._exit(7)
        if rank == 0 and end == "takes too much memory":
            hoard = [bytearray(os.urandom(1) * 50_000_000) for _ in range(20)]
            time.sleep(60 + len(hoard))
        time.sleep(300)

    return job


@pytest.fixture(scope="module")
def ending(tmp_path_factory, cluster, slurm, record_of):
    folder = SweepFolder(tmp_path_factory.mktemp("ends") / "sweep")
    size = {"parallel.world_size": 2, "parallel.tensor_parallel_size": 2}
    record = record_of([size | {"training.seed": seed} for seed in range(len(ENDS))])
    quick = slurm.model_copy(update={"time_limit_minutes": 1, "extra_sbatch": {"mem": "400M"}})
    submit(folder, record, quick, job=make_job(ENDS))
    return folder, record


@pytest.fixture
def state_of(ending, wait_until):
    folder, record = ending

    def state(end, seconds=60):
        index = ENDS.index(end)
        return wait_until(folder, record, lambda states: states[index].outcome.is_final, seconds)[index]

    return state


def test_a_raising_rank_ends_the_job_at_once_and_its_own_traceback_is_the_cause(state_of):
    state = state_of("raises", 30)
    assert (state.outcome, state.failing_rank) == (Outcome.FAILED, 1)
    assert state.cause == "ValueError: the data of rank 1 is bad"
    assert "raise ValueError" in state.traceback


def test_the_culprit_is_named_and_not_the_peer_that_lost_its_connection(state_of):
    state = state_of("loses its peer", 30)
    assert (state.failing_rank, state.cause) == (1, "ValueError: the data of rank 1 is bad")


def test_a_killed_rank_is_named_with_its_signal(state_of):
    state = state_of("is killed", 30)
    assert (state.outcome, state.failing_rank) == (Outcome.FAILED, 1)
    assert state.cause == "rank 1 was killed by signal 9"


def test_a_rank_that_exits_without_a_word_is_named_with_its_exit_code(state_of):
    state = state_of("exits", 30)
    assert (state.outcome, state.failing_rank) == (Outcome.FAILED, 1)
    assert "exit code 7" in state.cause


def test_a_job_over_its_memory_is_out_of_memory_whatever_slurm_calls_it(state_of):
    state = state_of("takes too much memory", 60)
    assert state.outcome is Outcome.OUT_OF_MEMORY, state


def test_a_job_cancelled_by_hand_is_cancelled_and_runs_again(ending, state_of, wait_until):
    folder, record = ending
    index = ENDS.index("is cancelled")
    wait_until(folder, record, lambda states: states[index].scheduler_state == "RUNNING", 30)
    job_id = read_submission(folder.trial(record.trials[index].trial_id)).job_id
    assert os.system(f"scancel {job_id}") == 0
    assert state_of("is cancelled", 30).outcome is Outcome.CANCELLED


def test_a_job_at_its_time_limit_is_timed_out_and_not_a_failure_of_the_program(state_of):
    state = state_of("runs too long", 120)
    assert state.outcome is Outcome.TIMED_OUT, state
    assert "time limit" in state.cause


def test_only_what_was_cancelled_runs_again_unless_failures_are_to_be_retried(ending, slurm: SlurmSpec, state_of):
    folder, record = ending
    for end in ENDS:
        state_of(end, 120)

    def quick(folder: str) -> None:
        Path(folder, "ran").write_text(str(time.time()))

    summary = submit(folder, record, slurm, job=quick)
    assert (summary.num_submitted, summary.num_kept) == (1, len(ENDS) - 1)
    assert summary.arrays[0].trial_ids == (record.trials[ENDS.index("is cancelled")].trial_id,)
    retried = submit(folder, record, slurm, retry_failed=True, job=quick)
    assert (retried.num_submitted, retried.num_live) == (5, 1)
    assert cancel_sweep(folder, record) >= 0
