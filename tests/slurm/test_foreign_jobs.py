"""Other people's jobs are let alone, and a job of which this machine's Slurm knows nothing is not taken for ended."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conf.errors import UsageError
from conf.types.sites import SlurmSpec
from launcher.cancel import cancel_sweep, cancel_trials
from launcher.slurm import reconcile as state
from launcher.slurm import verdict
from launcher.slurm.job_records import charged_times
from launcher.slurm.query import query_jobs
from launcher.slurm.reconcile import reconcile
from sweeps.folder.submission import write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.points_alone import submit_points
from tests.slurm.conftest import WaitUntil, has_ended
from tests.slurm.test_queue import make_waiting_job, scontrol
from tests.waiting import wait_for
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm_cluster")]


@pytest.fixture
def held(folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec) -> Iterator[Sweep]:
    """A sweep whose only job waits in the queue."""
    sweep = Sweep(folder, record_of([{"training.seed": 1}]))
    submit_points(sweep, slurm.model_copy(update={"extra_sbatch": {"hold": True}}))
    before = sweep.read()[0].submission
    assert before is not None
    yield sweep
    write_submission(sweep.read()[0].folder, before)
    cancel_sweep(sweep)


def test_another_clusters_login_node_says_that_it_does_not_know_and_starts_nothing_twice(
    held: Sweep, slurm: SlurmSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "FORGOTTEN_SECONDS", 0.0)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, script in {"scontrol": "echo 'ClusterName = other'", "squeue": "true", "sacct": "true"}.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("PATH", str(tools), prepend=":")
        (trial,) = reconcile(held.read())
        unknown = "its job is one of the Slurm cluster test, and this machine asks other"
        assert (trial.outcome, trial.scheduler_state, trial.cause) == (Outcome.PENDING, "UNKNOWN HERE", unknown)
        again = submit_points(held, slurm, retry_failed=True)
        assert (again.num_submitted, again.num_live) == (0, 1)
        with pytest.raises(UsageError, match=r"0 jobs were cancelled, and 1 was not: .*Give the same command there"):
            cancel_sweep(held)
    assert reconcile(held.read())[0].scheduler_state == "PENDING"


def test_a_copy_of_a_folder_ends_none_of_the_jobs_that_work_in_the_original(held: Sweep, tmp_path: Path) -> None:
    copy = Sweep.stored_in(SweepFolder(shutil.copytree(held.folder.path, tmp_path / "copy")))
    with pytest.raises(UsageError, match=r"0 jobs were cancelled, and 1 was not: .* works in .*, of which this folder"):
        cancel_sweep(copy)
    with pytest.raises(UsageError, match="of which this folder is a copy"):
        cancel_trials(copy, copy.record.trials)
    (there,) = reconcile(copy.read())
    assert (there.outcome, there.scheduler_state) == (Outcome.PENDING, "UNKNOWN HERE")
    assert f"its job works in {held.read()[0].folder.path}" in there.cause
    assert reconcile(held.read())[0].scheduler_state == "PENDING"


def test_a_folder_that_was_moved_keeps_its_jobs(held: Sweep, tmp_path: Path) -> None:
    moved = SweepFolder(tmp_path / "moved")
    held.folder.path.rename(moved.path)
    moved_sweep = Sweep.stored_in(moved)
    assert reconcile(moved_sweep.read())[0].scheduler_state == "PENDING"
    assert cancel_sweep(moved_sweep) == 1
    moved.path.rename(held.folder.path)


def test_whatever_a_person_calls_a_job_later_it_is_known_counted_and_cancelled(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    def job(folder: str) -> None:
        import signal
        from pathlib import Path

        from launcher import job
        from train_core.trial.folder import TrialFolder

        job.PATIENCE_SECONDS = 0
        if job.own_submission(TrialFolder(folder)) is not None:
            Path(folder, "metrics.jsonl").touch()
        signal.pause()

    sweep = Sweep(folder, record_of([{"training.seed": seed} for seed in range(3)]))
    held = slurm.model_copy(update={"extra_sbatch": {"hold": True}})
    submit_points(sweep, held, job=job)
    first, second, _ = (each.job_id or "" for each in sweep.read())
    scontrol("update", f"jobid={first}", "jobname=renamed before it starts")
    scontrol("release", first, second)
    wait_until(folder, sweep.record, lambda states: all(each.folder.metrics.exists() for each in states[:2]))
    scontrol("update", f"jobid={second}", "jobname=renamed while it runs")
    assert [each.scheduler_state for each in reconcile(sweep.read())] == ["RUNNING", "RUNNING", "PENDING"]
    assert submit_points(sweep, held).num_live == 3
    assert cancel_sweep(sweep) == 3
    ends = wait_until(folder, sweep.record, lambda states: all(map(has_ended, states)))
    assert {each.outcome for each in ends} == {Outcome.CANCELLED}


@pytest.mark.thorough  # tests/launcher/slurm/test_job_status.py: ..._in_the_books_alone_counts_for_some_minutes_...
def test_a_job_that_squeue_leaves_out_for_once_is_not_run_beside_itself(
    folder: SweepFolder,
    record_of: RecordOf,
    slurm: SlurmSpec,
    wait_until: WaitUntil,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "squeue").chmod(0o755)
    sweep = Sweep(folder, record_of([{"training.seed": 1}]))
    submit_points(sweep, slurm, job=make_waiting_job())
    wait_for(lambda: any(each.seconds for each in charged_times(sweep.read()).values()))
    with monkeypatch.context() as silent:
        silent.setattr(state, "FORGOTTEN_SECONDS", 0.0)
        silent.setenv("PATH", str(tmp_path), prepend=":")
        (reading,) = reconcile(sweep.read())
        assert (reading.outcome, reading.scheduler_state) == (Outcome.PENDING, "UNKNOWN HERE")
        assert "the accounting calls RUNNING" in reading.cause
        assert submit_points(sweep, slurm).num_live == 1
        with pytest.raises(UsageError, match=r"1 was not: .* squeue does not know its job.*again in some minutes"):
            cancel_sweep(sweep)
    (end,) = wait_until(folder, sweep.record, lambda states: all(map(has_ended, states)))
    assert end.outcome is Outcome.CANCELLED


@pytest.mark.slow
def test_what_jobs_write_where_their_folder_lay_before_is_taken_in(
    tmp_path: Path, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(verdict.SETTLING_SECONDS, "COMPLETED", 2.0)
    folder, moved = SweepFolder(tmp_path / "runs" / "sweep"), SweepFolder(tmp_path / "elsewhere")
    record = record_of([{"training.seed": 0}, {"training.seed": 1}])
    submit_points(Sweep(folder, record), slurm, job=_job_that_outlives_a_move())
    wait_until(folder, record, lambda states: all((each.folder.path / "begun").exists() for each in states))
    folder.path.rename(moved.path)
    ends = wait_until(moved, record, lambda states: all(map(has_ended, states)))
    wanted = [(Outcome.FAILED, "ValueError: it broke"), (Outcome.OUT_OF_MEMORY, "measured")]
    assert [(each.outcome, each.cause) for each in ends] == wanted


def _job_that_outlives_a_move() -> Callable[[str], None]:
    def job(folder: str) -> None:
        import time
        from pathlib import Path

        from train_core.job.failures import failure_of, without_numbers
        from train_core.trial.folder import TrialFolder
        from train_core.trial.measurement import Outcome

        experiment = TrialFolder(folder).read_experiment()
        Path(folder, "begun").touch()
        while Path(folder, "begun").exists():
            time.sleep(0.2)
        if experiment.training.seed == 1:
            ended = without_numbers(experiment.fingerprint, Outcome.OUT_OF_MEMORY, "measured", time.time())
            TrialFolder(folder).write_measurement(ended)
            return
        TrialFolder(folder).write_failure(failure_of(0, ValueError("it broke")))
        raise SystemExit(1)

    return job


def test_a_number_that_slurm_gave_out_again_is_neither_shown_nor_cancelled_as_ours(
    held: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["sbatch", "--parsable", "--hold", "--job-name=precious", "--output=/dev/null", "--wrap=true"]
    precious = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    (trial,) = held.read()
    assert trial.submission is not None
    own, wrong = trial.submission.job_id, trial.submission.model_copy(update={"job_id": precious})
    write_submission(trial.folder, wrong)
    (trial,) = reconcile(held.read())
    assert trial.submission is not None
    assert (trial.submission.job_id, trial.scheduler_state) == (own, "PENDING"), "its name says which job is its own"
    assert cancel_sweep(held) == 1

    write_submission(trial.folder, wrong.model_copy(update={"job_name": "trisweep-test-of-no-job"}))
    (trial,) = reconcile(held.read())
    assert (trial.outcome, trial.scheduler_state) == (Outcome.PENDING, None)
    assert cancel_sweep(held) == 0
    assert query_jobs([precious])[precious].name == "PENDING"
    subprocess.run(["scancel", precious], check=True)

    monkeypatch.setattr(state, "FORGOTTEN_SECONDS", 0.0)
    (trial,) = reconcile(held.read())
    assert trial.outcome is Outcome.FAILED
    assert "Slurm no longer knows it" in trial.cause
