"""Variables by which people set options of Slurm's tools in their shells, beside a sweep's configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.types.sites import SlurmSpec
from launcher.external_commands import ask
from launcher.slurm.query import query_named
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.composed import load
from tests.conftest import BuildRecord
from tests.launcher.points_alone import submit_points

Submitted = Callable[..., tuple[dict[str, str], str]]
OUR_OWN = "echo 'ClusterName = alps'"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`install(squeue="script")`: stand-ins for Slurm's tools. No variable of theirs is set before."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH", "SRUN", "SQUEUE", "SACCT"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/bin")

    def tools(**scripts: str) -> None:
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    return tools


@pytest.fixture
def submitted(
    install: Callable[..., None], build_record: BuildRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Submitted:
    """The variables of Slurm's that sbatch sees, and its script, for a trial under these settings in such a shell."""

    def submit(shell: dict[str, str], *settings: str) -> tuple[dict[str, str], str]:
        for name, value in shell.items():
            monkeypatch.setenv(name, value)
        install(scontrol=OUR_OWN, squeue="true", sacct="true", srun="true")
        install(sbatch=f"env > {tmp_path}/environment; cat $1 > {tmp_path}/script; echo Submitted batch job 12")
        slurm: SlurmSpec = load(settings).slurm
        record = build_record([{"training.seed": 1}], ())
        submit_points(Sweep(SweepFolder(tmp_path / "runs" / "x"), record), slurm)
        lines = [line.partition("=") for line in (tmp_path / "environment").read_text().splitlines()]
        seen = {name: value for name, _, value in lines if name.startswith(("SLURM", "SBATCH", "SRUN"))}
        return seen, (tmp_path / "script").read_text()

    return submit


OURS_TO_DECIDE = (
    *(("SBATCH_JOB_NAME", "mine"), ("SBATCH_ARRAY_INX", "0-1"), ("SBATCH_TIMELIMIT", "1"), ("SBATCH_WAIT", "1")),
    *(("SBATCH_OUTPUT", "/x"), ("SBATCH_ERROR", "/x"), ("SBATCH_INPUT", "/x"), ("SBATCH_OPEN_MODE", "truncate")),
    *(("SBATCH_SIGNAL", "USR1@90"), ("SBATCH_GPUS", "1"), ("SBATCH_GRES", "gpu:1"), ("SBATCH_GPUS_PER_NODE", "1")),
    *(("SBATCH_GPUS_PER_TASK", "1"), ("SBATCH_TRES_PER_TASK", "gres/gpu=1"), ("SBATCH_CLUSTERS", "other")),
    *(("SBATCH_CONTAINER", "/bundle"), ("SBATCH_NO_REQUEUE", "1"), ("SBATCH_REQUEUE", "1"), ("SBATCH_DEBUG", "3")),
    ("SBATCH_EXCLUSIVE", "user"),
    *(("SLURM_TIMELIMIT", "1"), ("SLURM_EXPORT_ENV", "NONE"), ("SRUN_EXPORT_ENV", "NIL"), ("SLURM_LABELIO", "1")),
    *(("SLURM_NTASKS", "1"), ("SLURM_NPROCS", "1"), ("SLURM_NNODES", "1"), ("SLURM_JOB_NUM_NODES", "1")),
    *(("SLURM_STDOUTMODE", "/x"), ("SRUN_OUTPUT", "/x"), ("SLURM_WORKING_DIR", "/tmp"), ("SLURM_SRUN_MULTI", "1")),
    *(("SLURM_GPUS", "1"), ("SLURM_GRES", "none"), ("SLURM_MEM_PER_NODE", "1"), ("SLURM_CPUS_PER_TASK", "1")),
    *(("SLURM_EXCLUSIVE", "1"), ("SLURM_OVERLAP", "1"), ("SLURM_WAIT", "3"), ("SLURM_KILL_BAD_EXIT", "0")),
    *(("SLURM_IMMEDIATE", "1"), ("SLURM_JOB_NAME", "mine"), ("SLURM_PARTITION", "urgent"), ("SLURM_SIGNAL", "9@9")),
)


def test_what_the_configuration_or_the_trial_decides_is_hidden_from_sbatch(submitted: Submitted) -> None:
    seen, _ = submitted({**dict(OURS_TO_DECIDE), "SLURM_CONF": "/etc/slurm.conf"})
    assert seen == {"SLURM_CONF": "/etc/slurm.conf"}


@pytest.mark.parametrize(
    ("shell", "stated"),
    [
        (
            {"SBATCH_PARTITION": "urgent", "SBATCH_ACCOUNT": "mine", "SBATCH_QOS": "high", "SBATCH_CONSTRAINT": "cpu"},
            ("slurm.partition=gpu", "slurm.account=lab", "slurm.qos=normal", "slurm.constraint=a100"),
        ),
        (
            {"SBATCH_RESERVATION": "course", "SBATCH_MEM_PER_CPU": "1G", "SBATCH_CPUS_PER_GPU": "3"},
            ("slurm.extra_sbatch={reservation: lab, mem: 0}", "slurm.cpus_per_task=4"),
        ),
        (
            {"SBATCH_MEM_PER_NODE": "2G", "SBATCH_EXPORT": "NONE"},
            ("slurm.extra_sbatch={mem_per_gpu: 8G, export: ALL}",),
        ),
    ],
)
def test_a_shells_value_counts_where_the_configuration_states_none_and_stands_in_the_script(
    shell: dict[str, str], stated: tuple[str, ...], submitted: Submitted
) -> None:
    seen, script = submitted(shell, *stated)
    assert seen == {}
    assert [value for value in shell.values() if f"={value}\n" in script] == []


def test_an_empty_variable_asks_for_nothing(submitted: Submitted) -> None:
    seen, script = submitted({"SBATCH_QOS": ""})
    assert (seen, "--qos" in script) == ({}, False)


def test_a_shells_value_that_counts_is_seen_in_the_script(submitted: Submitted) -> None:
    shell = {"SBATCH_ACCOUNT": "mine", "SBATCH_PARTITION": "gpu,long", "SBATCH_RESERVATION": "course"}
    shell |= {"SBATCH_MEM_PER_NODE": "8G", "SBATCH_EXPORT": "NONE", "SBATCH_REQ_SWITCH": "1", "SBATCH_OVERCOMMIT": "1"}
    seen, script = submitted(shell)
    lines = {"account=mine", "partition=gpu,long", "reservation=course", "mem=8G", "export=NONE", "switches=1"}
    assert seen == shell
    assert {*lines, "overcommit"} <= set(re.findall(r"^#SBATCH --(\S+)$", script, re.MULTILINE))


def test_a_sites_module_full_of_defaults_changes_no_job_that_states_its_own(submitted: Submitted) -> None:
    shell = {"SBATCH_PARTITION": "batch", "SBATCH_MEM_PER_NODE": "100M", "SBATCH_TIMELIMIT": "1:0:0"}
    shell |= {"SBATCH_REQUEUE": "", "SBATCH_PARTITION_SET": "", "SLURM_CPUS_PER_TASK": "1", "SLURM_PARTITION": "batch"}
    seen, script = submitted(shell, "slurm.partition=gpu", "slurm.extra_sbatch={mem: 0}", "slurm.time_limit_minutes=7")
    assert seen == {"SBATCH_PARTITION_SET": ""}, "which is no option"
    assert all(f"#SBATCH --{line}\n" in script for line in ("partition=gpu", "mem=0", "time=7"))


def test_settings_of_a_site_for_how_ranks_are_bound_reach_the_job(submitted: Submitted) -> None:
    own = {"SLURM_MPI_TYPE": "pmix", "SLURM_CPU_BIND": "cores", "SLURM_CLUSTERS": "alps", "SLURM_HINT": "nomultithread"}
    assert submitted(own | {"SLURM_ROOT": "/opt/slurm"})[0] == own | {"SLURM_ROOT": "/opt/slurm"}


@pytest.mark.parametrize(
    "shell",
    [
        {"SQUEUE_FORMAT": "%i", "SQUEUE_PARTITION": "none", "SQUEUE_STATES": "PD", "SQUEUE_USERS": "x"},
        {"SACCT_FORMAT": "jobid", "SINFO_FORMAT": "%n", "SCANCEL_INTERACTIVE": "1", "SCONTROL_FUTURE": "1"},
    ],
)
def test_no_question_is_shaped_by_what_a_person_likes_to_see(
    shell: dict[str, str], install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (shell | {"SLURM_TIME_FORMAT": "relative", "SLURM_CONF": "/x"}).items():
        monkeypatch.setenv(name, value)
    install(squeue="env >&2; exit 1", scontrol=OUR_OWN, sacct="true")
    said = ask("squeue").stderr.splitlines()
    assert [line for line in said if line.startswith(tuple(f"{name}=" for name in shell))] == []
    assert {"SLURM_TIME_FORMAT=standard", "SLURM_CONF=/x"} <= {*said}
    install(squeue="true")
    assert query_named(["x"]) == {}
