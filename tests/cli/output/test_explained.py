"""A dry run says what its text for sbatch holds, what that leaves to the site, and what runs in the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.messages import said

Says = Callable[..., str]


@pytest.fixture
def says(trisweep: Command, tmp_path: Path) -> Says:
    """`says("smoke", "cluster=...")`: what a dry run prints."""

    def run(*arguments: str, **environment: str) -> str:
        done = trisweep("sweep", *arguments, "--dry-run", cwd=tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        assert "Nothing was submitted." in done.stdout
        return done.stdout

    return run


def test_what_is_unset_is_named_with_what_a_site_then_does(says: Says) -> None:
    said = says("smoke", "cluster=perlmutter")
    left = said.split("Not stated, so that the site decides:")[1]
    keys = ("partition", "account", "extra_sbatch.mem", "extra_sbatch.requeue", "setup, slurm.environment")
    assert all(f"\n  slurm.{key}: " in left for key in keys)
    assert not any(f"\n  slurm.{key}: " in left for key in ("qos", "cpus_per_task"))
    for word in ("TOKEN", "SNAPSHOT", "SHA256", "--signal=...@0"):
        assert f"\n  {word}: " in said
    assert "Trisweep's own trainer" in said


def test_what_is_stated_is_not_named(says: Says) -> None:
    stated = (
        "partition=a",
        "account=b",
        "environment.X=c",
        "extra_sbatch.mem-per-gpu=9G",
        "extra_sbatch.no-requeue=true",
    )
    said = says("smoke", "cluster=perlmutter", *(f"slurm.{each}" for each in stated))
    assert "Not stated" not in said


def test_a_job_that_saves_is_warned_and_requeues(says: Says) -> None:
    said = says("smoke", "cluster=perlmutter", "checkpoint=regular")
    assert "Slurm warns the job N seconds before its time limit" in said
    assert "slurm.extra_sbatch.requeue: " not in said
    assert "@0" not in said


def test_the_program_that_runs_in_the_end_is_shown(says: Says) -> None:
    program = ("trainer=command", "trainer.start=torchrun", "trainer.command=[mine.py,'a b']", "trainer.prefix=[env]")
    where = ("trainer.working_dir=/somewhere", "cluster=perlmutter", "cluster.devices_per_node=1")
    said = says("smoke", *program, *where)
    lines = [line for line in said.splitlines() if line.startswith("  cd /somewhere && env ")]
    assert all("-m torch.distributed.run" in line and line.endswith("mine.py 'a b'") for line in lines)
    assert any("--nnodes=2 --node-rank=0 --master-addr=MASTER_ADDR --master-port=MASTER_PORT" in line for line in lines)


def test_the_doctor_s_findings_stand_below_where_slurm_answers(says: Says, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    short = "PartitionName=short State=UP MaxTime=10:00"
    scripts = {
        "sbatch": "cat > /dev/null; echo 'Invalid qos specification' >&2; exit 1",
        "scontrol": f'case "$*" in *partition*) echo {short};; *config*) echo "ClusterName = x"; esac',
        **dict.fromkeys(("srun", "squeue", "scancel", "sinfo", "sacct", "sacctmgr"), "true"),
    }  # fmt: skip
    for name, script in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    said = says("smoke", "cluster=perlmutter", "slurm.partition=short", PATH=f"{tools}:/bin")
    assert "\nDoctor: problem: time limit: 30 minutes are wanted, short gives at most 10." in said
    assert "\nDoctor: problem: a sweep's job: would be refused: Invalid qos specification" in said
    assert not list(tmp_path.glob("runs/*"))


def test_a_folder_that_cannot_be_written_is_refused_on_paper_too(trisweep: Command, tmp_path: Path) -> None:
    for place in ((), ("cluster=perlmutter",)):
        done = trisweep("sweep", "smoke", *place, "--dry-run", "output_dir=/proc/x", cwd=tmp_path)
        said(done, "output_dir")
