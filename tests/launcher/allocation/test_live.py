"""A sweep in one allocation has one, also for a command on the login node of another cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conf.compose.settings import LauncherSpec
from conf.errors import UsageError
from conf.types.cluster_spec import ClusterSpec
from launcher.allocation_sweep import request, submit_allocation
from sweeps.folder.submission import Submission, read_submission, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.composed import load
from tests.conftest import RecordOf
from tests.launcher.conftest import SlurmOf

JOB = {"job_name": "trisweep-test-allocation-1a2b", "cluster": "alps"}


@pytest.fixture
def submit(folder: SweepFolder, record_of: RecordOf, slurm_of: SlurmOf) -> Callable[[], str | None]:
    """Submits the allocation of a sweep of one trial, or names the job that lives."""
    record = record_of([{"training.seed": 1}])
    folder.write_record(record)
    cluster: ClusterSpec = load([]).cluster
    launcher = LauncherSpec(kind="allocation", num_nodes=1, time_limit_minutes=60)
    return lambda: submit_allocation(Sweep(folder, record), slurm_of(), launcher, cluster).job_id


def test_an_allocation_asks_for_all_memory_and_not_by_the_core_too(record_of: RecordOf, slurm_of: SlurmOf) -> None:
    sweep = Sweep(SweepFolder("/shared/runs"), record_of([{"training.seed": 1}]))
    settings = slurm_of("slurm.extra_sbatch={mem-per-cpu: 2G, mem_per_gpu: 2G}")
    launcher = LauncherSpec(kind="allocation", num_nodes=1, time_limit_minutes=60)
    text = request(sweep, settings, launcher, load([]).cluster).sbatch
    assert [line for line in text.splitlines() if line.startswith("#SBATCH --mem")] == ["#SBATCH --mem=0"]


def test_no_second_allocation_is_submitted_where_slurm_cannot_know_the_first(
    submit: Callable[[], str | None],
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
    with pytest.raises(UsageError, match="its job is one of the Slurm cluster alps, and this machine asks jura"):
        submit()
    assert not asked.exists()


def test_the_number_of_an_allocation_that_is_found_by_its_name_is_written_down(
    submit: Callable[[], str | None],
    folder: SweepFolder,
    slurm_submission: Callable[..., Submission],
    tools: Callable[..., None],
) -> None:
    found = f"echo '12|RUNNING|N/A||{JOB['job_name']}|'"
    tools(scontrol="echo 'ClusterName = alps'", squeue=found, sacct="true", srun="true", sbatch="exit 1")
    write_submission(folder.allocation, slurm_submission(None, **JOB))
    assert submit() == "12"
    kept = read_submission(folder.allocation)
    assert kept is not None
    assert kept.job_id == "12"
