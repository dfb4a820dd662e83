"""Arrays in the queue: split, throttled, held, suspended, requeued, cancelled, refused."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.errors import UsageError
from conf.types.sites import SlurmSpec
from launcher.cancel import cancel_sweep
from launcher.slurm import verdict
from launcher.slurm.query import SlurmSilent, query_jobs
from sweeps.folder.submission import Submission, read_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.conftest import RecordOf
from tests.launcher.points_alone import submit_points
from tests.launcher.test_run_here import seeds
from tests.slurm.conftest import WaitUntil, has_ended
from tests.waiting import wait_for
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm_cluster")]


def make_waiting_job(seconds: float = 120.0) -> Callable[[str], None]:
    def job(folder: str) -> None:
        import signal
        import time
        from pathlib import Path

        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with Path(folder, "starts").open("a") as file:
            file.write(f"{time.time()}\n")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not Path(folder, "go").exists():
            time.sleep(0.1)

    return job


def submission_of(folder: SweepFolder, trial_id: str) -> Submission:
    submission = read_submission(folder.trial(trial_id))
    assert submission is not None
    return submission


def job_id_of(folder: SweepFolder, record: SweepRecord, index: int = 0) -> str:
    job_id = submission_of(folder, record.trials[index].trial_id).job_id
    assert job_id is not None
    return job_id


def scontrol(*arguments: str) -> None:
    subprocess.run(["scontrol", *arguments], check=True, capture_output=True)


def test_an_array_larger_than_the_cluster_allows_is_split(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec
) -> None:
    record = record_of(seeds(5))
    summary = submit_points(
        Sweep(folder, record), slurm.model_copy(update={"max_array_size": 2}), job=make_waiting_job()
    )
    assert [len(array.trial_ids) for array in summary.arrays] == [2, 2, 1]
    assert len({array.job_id for array in summary.arrays}) == 3
    ids = [job_id_of(folder, record, index) for index in range(5)]
    assert len(set(ids)) == 5
    assert "_" not in ids[4]
    assert cancel_sweep(Sweep(folder, record)) == 5


def test_a_throttled_array_runs_no_more_than_it_may_and_cancelling_ends_running_and_queued(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    record = record_of(seeds(3))
    submit_points(Sweep(folder, record), slurm.model_copy(update={"array_parallelism": 1}), job=make_waiting_job())
    states = wait_until(folder, record, lambda states: states[0].scheduler_state == "RUNNING")
    assert [state.outcome for state in states] == [Outcome.RUNNING, Outcome.PENDING, Outcome.PENDING]
    again = submit_points(Sweep(folder, record), slurm, job=make_waiting_job())
    assert (again.num_submitted, again.num_live) == (0, 3)

    assert cancel_sweep(Sweep(folder, record)) == 3
    states = wait_until(folder, record, lambda states: all(has_ended(state) for state in states))
    assert {state.outcome for state in states} == {Outcome.CANCELLED}
    assert cancel_sweep(Sweep(folder, record)) == 0


def test_a_job_that_is_suspended_or_requeued_and_held_has_not_ended(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    record = record_of(seeds(1))
    submit_points(Sweep(folder, record), slurm, job=make_waiting_job())
    trial, job_id = folder.trial(record.trials[0].trial_id), job_id_of(folder, record)
    wait_for((trial.path / "starts").exists)

    scontrol("suspend", job_id)
    assert wait_until(folder, record, lambda s: s[0].scheduler_state == "SUSPENDED")[0].outcome is Outcome.RUNNING
    scontrol("resume", job_id)
    scontrol("requeuehold", job_id)
    waiting = wait_until(folder, record, lambda s: s[0].outcome is Outcome.PENDING)
    assert waiting[0].scheduler_state in ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT")
    wait_for(lambda: subprocess.run(["scontrol", "release", job_id], capture_output=True, check=False).returncode == 0)

    wait_for(lambda: len((trial.path / "starts").read_text().splitlines()) == 2)
    assert trial.read_measurement() is None
    assert cancel_sweep(Sweep(folder, record)) == 1


def test_a_lost_node_is_an_outcome_of_its_own_and_is_submitted_again(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(verdict.SETTLING_SECONDS, "NODE_FAIL", 1.0)
    record = record_of(seeds(1))
    pinned = slurm.model_copy(update={"extra_sbatch": {"no-requeue": True, "nodelist": "node4"}, "max_resubmits": 1})
    submit_points(Sweep(folder, record), pinned, job=make_waiting_job())
    wait_for((folder.trial(record.trials[0].trial_id).path / "starts").exists)
    scontrol("update", "nodename=node4", "state=down", "reason=test")
    try:
        state = wait_until(folder, record, lambda states: has_ended(states[0]))[0]
    finally:
        subprocess.run(["scontrol", "update", "nodename=node4", "state=resume"], capture_output=True, check=False)
    assert state.outcome is Outcome.NODE_FAILED

    assert (
        submit_points(
            Sweep(folder, record), slurm.model_copy(update={"max_resubmits": 1}), job=make_waiting_job()
        ).num_submitted
        == 1
    )
    assert submission_of(folder, record.trials[0].trial_id).attempt == 2
    assert cancel_sweep(Sweep(folder, record)) == 1


def test_a_request_that_slurm_refuses_is_one_message_with_slurms_reason(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec
) -> None:
    with pytest.raises(UsageError, match=r"invalid partition"):
        submit_points(
            Sweep(folder, record_of(seeds(2))),
            slurm.model_copy(update={"partition": "nowhere"}),
            job=make_waiting_job(),
        )


def test_without_accounting_the_queue_answers_and_without_both_nothing_is_concluded(
    folder: SweepFolder,
    record_of: RecordOf,
    slurm: SlurmSpec,
    wait_until: WaitUntil,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = record_of(seeds(1))
    submit_points(Sweep(folder, record), slurm, job=make_waiting_job())
    job_id = job_id_of(folder, record)
    wait_until(folder, record, lambda states: states[0].scheduler_state == "RUNNING")
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(SlurmSilent):
        query_jobs([job_id])
    (tools / "squeue").symlink_to("/usr/bin/squeue")
    (tools / "scancel").symlink_to("/usr/bin/scancel")
    assert query_jobs([job_id, "987654"]).keys() == {job_id}
    assert cancel_sweep(Sweep(folder, record)) == 1
    assert wait_until(folder, record, lambda states: has_ended(states[0]))[0].outcome is Outcome.CANCELLED


@pytest.mark.parametrize("gpu_request", ["gpus-per-node", "gres"])
def test_a_job_is_given_the_gpus_that_its_tasks_need(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, gpu_request: str
) -> None:
    def job(folder: str) -> None:
        import os
        from pathlib import Path

        Path(folder, f"rank-{os.environ['SLURM_PROCID']}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])

    record = record_of(
        [{"parallel.world_size": 2, "parallel.tensor_parallel_size": 2, "training.seed": seed} for seed in (1, 2)],
        "cluster.device.kind=gpu",
    )
    submit_points(Sweep(folder, record), slurm.model_copy(update={"gpu_request": gpu_request}), job=job)
    seen = [folder.trial(t.trial_id).path / f"rank-{rank}" for t in record.trials for rank in (0, 1)]
    wait_for(lambda: all(path.exists() and path.read_text() for path in seen))
    assert {len(path.read_text().split(",")) for path in seen} == {2}
    cancel_sweep(Sweep(folder, record))


def test_a_job_whose_place_another_has_taken_does_not_run(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from launcher import job as job_module

    record = record_of(seeds(1))
    submit_points(Sweep(folder, record), slurm, job=make_waiting_job())
    trial = folder.trial(record.trials[0].trial_id)
    monkeypatch.setattr(job_module, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setenv("SLURM_JOB_NAME", "trisweep-test-of-another-submitter")
    job_module.run_in_slurm(str(trial.path))
    assert not trial.measurement.exists()
    assert trial.read_failures() == []
    cancel_sweep(Sweep(folder, record))


def test_a_measurement_that_was_damaged_is_measured_again_by_the_next_sweep(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    def job(folder: str) -> None:
        from pathlib import Path

        Path(folder, "measurement.json").write_text('{"outcome": "COMPL')

    sweep = Sweep(folder, record_of(seeds(1)))
    submit_points(sweep, slurm, job=job)
    (state,) = wait_until(folder, sweep.record, lambda states: "was corrupt" in states[0].cause)
    assert state.outcome is Outcome.PENDING
    assert submit_points(sweep, slurm, job=make_waiting_job()).num_submitted == 1
    assert submission_of(folder, state.name).attempt == 2
    assert cancel_sweep(sweep) == 1
