"""The srun of a trial that shares an allocation with others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conf.errors import UsageError
from conf.types.sites import SlurmSpec
from launcher.allocation.nodes import AllocatedNode, SlurmAllocation
from launcher.allocation.packing import StepPlacement
from launcher.allocation.step import StepExecutor
from launcher.job_payload import RUN_IN_SLURM, FolderWork
from sweeps.folder.submission import JobShape, Submission, SurroundingJob
from tests.launcher.conftest import SlurmOf
from tests.messages import refused
from train_core.trial.folder import TrialFolder

NODES = (AllocatedNode("n1", 64, 512000, 8), AllocatedNode("n2", 64, 512000, 8))
WITHOUT_GPUS = tuple(node._replace(gpus=0) for node in NODES)


def executor(slurm: SlurmSpec, nodes: tuple[AllocatedNode, ...] = NODES) -> StepExecutor:
    allocation = SlurmAllocation("12", "trisweep-x-allocation-1a2b3c4d", 0, nodes, 2, True, float("inf"), float("inf"))
    return StepExecutor(allocation, slurm, 8, "trisweep-x", lambda: Path("/code"), Path("/logs"), False, 60)


def submission(num_nodes: int, tasks_per_node: int, *, uses_gpus: bool = True) -> Submission:
    return Submission(
        executor="slurm",
        job_id=None,
        job_name="trisweep-x-0badcafe",
        inside=SurroundingJob(job_id="12", job_name="trisweep-x-allocation-1a2b3c4d"),
        hostname="n1",
        attempt=1,
        submitted=0.0,
        shape=JobShape(num_nodes=num_nodes, tasks_per_node=tasks_per_node, uses_gpus=uses_gpus),
        output="/logs/trisweep-x-0badcafe_%t_log.out",
        error="/logs/trisweep-x-0badcafe_%t_log.err",
    )


def test_a_step_asks_for_its_own_part_of_a_node(slurm_of: SlurmOf) -> None:
    placement = StepPlacement(("n2",), (4, 5))
    command = executor(slurm_of("slurm.time_limit_minutes=7")).command(submission(1, 2), placement, Path("/logs/a.pkl"))
    assert command[: command.index("--error=/logs/trisweep-x-0badcafe_%t_log.err") + 1] == [
        "srun",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        "--exact",
        "--nodes=1",
        "--nodelist=n2",
        "--immediate=60",
        "--ntasks=2",
        "--ntasks-per-node=2",
        "--cpus-per-task=8",
        "--mem=128000M",
        "--time=7",
        "--gpus-per-node=2",
        "--unbuffered",
        "--open-mode=append",
        "--job-name=trisweep-x-0badcafe",
        "--output=/logs/trisweep-x-0badcafe_%t_log.out",
        "--error=/logs/trisweep-x-0badcafe_%t_log.err",
    ]
    assert command[-3:] == ["/logs/a.pkl", "SHA256", "0"]


def test_a_step_asks_for_the_memory_that_the_site_says_however_the_option_is_written(slurm_of: SlurmOf) -> None:
    settings = slurm_of("slurm.extra_sbatch={--mem: 9G}")
    command = executor(settings).command(submission(1, 2), StepPlacement(("n2",), (4, 5)), Path("a.pkl"))
    assert "--mem=9G" in command


@pytest.mark.parametrize("stated", ["0", "'0'"])
def test_all_memory_of_a_node_is_shared_out_among_its_steps(stated: str, slurm_of: SlurmOf) -> None:
    settings = slurm_of(f"slurm.extra_sbatch={{mem: {stated}}}")
    command = executor(settings).command(submission(1, 2), StepPlacement(("n2",), (4, 5)), Path("a.pkl"))
    assert "--mem=128000M" in command


def test_a_step_of_whole_nodes_takes_all_that_they_have(slurm_of: SlurmOf) -> None:
    placement = StepPlacement(("n1", "n2"), tuple(range(8)))
    command = executor(slurm_of("slurm.gpu_request=gres")).command(submission(2, 8), placement, Path("a.pkl"))
    assert {"--nodelist=n1,n2", "--ntasks=16", "--mem=512000M", "--gres=gpu:8"} <= set(command)


def test_where_slurm_hands_out_no_devices_each_step_is_shown_its_own(
    slurm_of: SlurmOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "1000")
    step = executor(slurm_of("slurm.gpu_request=none"), WITHOUT_GPUS)
    shape, placement = JobShape(num_nodes=1, tasks_per_node=2, uses_gpus=True), StepPlacement(("n1",), (4, 5))
    environment = step.environment(shape, placement)
    assert environment["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert "SLURM_MEM_PER_NODE" not in environment
    assert not any(option.startswith("--g") for option in step.command(submission(1, 2), placement, Path("a.pkl")))


def test_trials_on_cpus_take_no_device_of_an_allocation_that_has_some(slurm_of: SlurmOf) -> None:
    command = executor(slurm_of()).command(
        submission(1, 2, uses_gpus=False), StepPlacement(("n1",), (0, 1)), Path("a.pkl")
    )
    assert "--gres=none" in command


def test_a_step_is_not_started_where_others_could_change_what_it_runs(
    slurm_of: SlurmOf, tools: Callable[..., None], tmp_path: Path
) -> None:
    tools(srun="true", scontrol="exit 1")
    logs = tmp_path / "logs"
    logs.mkdir()
    logs.chmod(0o777)
    work, shape = (
        FolderWork(TrialFolder(tmp_path / "trial"), 1),
        JobShape(num_nodes=1, tasks_per_node=2, uses_gpus=True),
    )
    with refused(UsageError):
        replace(executor(slurm_of()), logs=logs).start(RUN_IN_SLURM, work, shape, StepPlacement(("n1",), (0, 1)))
    assert list(logs.iterdir()) == []
