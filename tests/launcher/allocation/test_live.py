"""A sweep has one job that carries it out, which later commands order about; also where they ask another cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conf.compose.settings import LauncherSpec
from conf.errors import UsageError
from conf.types.cluster_spec import ClusterSpec
from launcher.allocation.sweep import allocation_request, submit_allocation
from launcher.control.orders import SweepCommand, SweepOrders
from launcher.slurm.controller import resume_controller
from launcher.sweep import hand_over, slurm_rules
from sweeps.folder.journal import Asked, Begun, Cancelled, Journal, Retried
from sweeps.folder.submission import Submission, read_submission, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.composed import load
from tests.conftest import RecordOf
from tests.launcher.conftest import SlurmOf
from tests.launcher.points_alone import submit_points
from tests.launcher.test_run_here import seeds
from tests.messages import refused
from tests.results.conftest import finish, performance
from train_core.trial.measurement import Outcome

JOB = {"job_name": "trisweep-test-allocation-1a2b", "cluster": "alps"}


@pytest.fixture
def submit_one(folder: SweepFolder, record_of: RecordOf, slurm_of: SlurmOf) -> Callable[[], str | None]:
    """Submits the allocation of a sweep of one trial, or names the job that lives."""
    record = record_of([{"training.seed": 1}])
    folder.write_record(record)
    cluster: ClusterSpec = load([]).cluster
    launcher = LauncherSpec(kind="allocation", num_nodes=1, time_limit_minutes=60)
    return lambda: submit_allocation(
        SweepCommand(Sweep(folder, record), slurm_rules(slurm_of())), slurm_of(), launcher, cluster
    )[0]


def test_an_allocation_asks_for_all_memory_and_not_by_the_core_too(record_of: RecordOf, slurm_of: SlurmOf) -> None:
    sweep = Sweep(SweepFolder("/shared/runs"), record_of([{"training.seed": 1}]))
    settings = slurm_of("slurm.extra_sbatch={mem-per-cpu: 2G, mem_per_gpu: 2G}")
    launcher = LauncherSpec(kind="allocation", num_nodes=1, time_limit_minutes=60)
    text = allocation_request(sweep, settings, launcher, load([]).cluster).sbatch
    assert [line for line in text.splitlines() if line.startswith("#SBATCH --mem")] == ["#SBATCH --mem=0"]


def test_no_second_allocation_is_submitted_where_slurm_cannot_know_the_first(
    submit_one: Callable[[], str | None],
    folder: SweepFolder,
    slurm_submission: Callable[..., Submission],
    tools: Callable[..., None],
    tmp_path: Path,
) -> None:
    asked = tmp_path / "submitted"
    tools(
        scontrol="echo 'ClusterName = jura'", squeue="true", sacct="true", srun="true", sbatch=f"touch {asked}; exit 1"
    )
    write_submission(folder.allocation, slurm_submission("12", **JOB))
    with refused(UsageError):
        submit_one()
    assert not asked.exists()


def test_the_number_of_an_allocation_that_is_found_by_its_name_is_written_down(
    submit_one: Callable[[], str | None],
    folder: SweepFolder,
    slurm_submission: Callable[..., Submission],
    tools: Callable[..., None],
) -> None:
    found = f"echo '12|RUNNING|N/A||{JOB['job_name']}|'"
    tools(scontrol="echo 'ClusterName = alps'", squeue=found, sacct="true", srun="true", sbatch="exit 1")
    write_submission(folder.allocation, slurm_submission(None, **JOB))
    assert submit_one() == "12"
    kept = read_submission(folder.allocation)
    assert kept is not None
    assert kept.job_id == "12"


@pytest.fixture(params=["controller", "allocation"])
def carry_out(
    request: pytest.FixtureRequest,
    folder: SweepFolder,
    slurm_of: SlurmOf,
    slurm_submission: Callable[..., Submission],
    tools: Callable[..., None],
) -> Callable[..., str | None]:
    """Gives a command to the sweep that a controller, or an allocation, carries out: job 12."""
    tools(
        scontrol="echo 'ClusterName = alps'",
        squeue=f'case $* in *--name=*) ;; *) echo "12|${{STATE:-RUNNING}}|N/A||{JOB["job_name"]}|" ;; esac',
        srun="true",
        sbatch="echo no more jobs >&2; exit 1",
    )
    write_submission(getattr(folder, request.param), slurm_submission("12", **JOB))
    slurm, settings = slurm_of(), load([])

    def give(record: SweepRecord, orders: SweepOrders) -> str | None:
        command = SweepCommand(Sweep(folder, record), slurm_rules(slurm), orders)
        if request.param == "controller":
            return hand_over(command, slurm, settings.controller)
        launcher = LauncherSpec(kind="allocation", num_nodes=1, time_limit_minutes=60)
        return submit_allocation(command, slurm, launcher, settings.cluster)[0]

    return give


def test_a_live_job_gets_the_orders_of_a_later_command(
    carry_out: Callable[..., str | None], folder: SweepFolder, record_of: RecordOf
) -> None:
    record = record_of(seeds(2))
    folder.write_record(record)
    measured, failed = record.trials
    finish(folder, measured, performance(100.0))
    finish(folder, failed, (Outcome.FAILED, "it broke"))
    assert carry_out(record, SweepOrders(retry_failed=True, remeasure=True)) == "12"
    entries = Journal(folder.journal).read_new()
    assert [entry.trial.trial_id for entry in entries if isinstance(entry, Asked)] == [f"{measured.trial_id}-r2"]
    assert [entry.trial_id for entry in entries if isinstance(entry, Retried)] == [failed.trial_id]


@pytest.mark.parametrize(("num_points", "budget"), [(2, ()), (1, ("budget.device_hours=2",))])
def test_a_live_job_of_another_sweep_is_not_taken_for_that_of_the_command(
    num_points: int,
    budget: tuple[str, ...],
    carry_out: Callable[..., str | None],
    folder: SweepFolder,
    record_of: RecordOf,
) -> None:
    folder.write_record(record_of(seeds(1)))
    Journal(folder.journal).append(Begun(overrides=(), on_slurm=True))
    with refused(UsageError):
        carry_out(record_of(seeds(num_points)), SweepOrders(budget, retry_failed=True))


@pytest.mark.parametrize("state", ["COMPLETING", "RUNNING"])
def test_a_job_that_only_ends_does_not_count_as_carrying_the_sweep_out(
    state: str,
    carry_out: Callable[..., str | None],
    folder: SweepFolder,
    record_of: RecordOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As between `trisweep cancel` and the end of the job that it had: a new one is to be submitted."""
    record = record_of(seeds(1))
    folder.write_record(record)
    cancelled = [Cancelled(trial_id=None)] if state == "RUNNING" else []
    Journal(folder.journal).append(Begun(overrides=("sweep=smoke",), on_slurm=True), *cancelled)
    monkeypatch.setenv("STATE", state)
    for module in ("slurm.controller", "allocation.sweep"):
        monkeypatch.setattr(f"launcher.{module}.snapshot_code", lambda *_: folder.code / "0a1b")
    if cancelled:
        assert resume_controller(Sweep(folder, record)) is None
    with refused(UsageError):
        carry_out(record, SweepOrders())


def test_a_sweep_that_one_kind_of_job_carries_out_gets_none_of_the_other_kind(
    carry_out: Callable[..., str | None], folder: SweepFolder, record_of: RecordOf, slurm_of: SlurmOf
) -> None:
    sweep = Sweep(folder, record_of(seeds(1)))
    folder.write_record(sweep.record)
    runs, other = folder.controller, folder.allocation
    if other.submission.exists():
        runs, other = other, runs
        with refused(UsageError):
            submit_points(sweep, slurm_of())
    runs.path.rename(other.path)
    with refused(UsageError):
        carry_out(sweep.record, SweepOrders())
