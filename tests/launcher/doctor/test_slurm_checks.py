"""A site's answers, made up, against the settings: what becomes a problem, and what is said to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from conf.types.durations import minutes
from launcher.doctor.node_report import DoctorFolder
from launcher.doctor.slurm_checks import slurm_findings
from launcher.doctor.tiny_job import TinyJob
from launcher.external_commands import pairs_of_lines, pairs_of_words
from tests.composed import load

CONFIG = {
    "ClusterName": "made-up",
    "SLURM_VERSION": "23.11.1",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageEnforce": "associations,limits,qos",
    "MinJobAge": "300 sec",
    "MaxArraySize": "1001",
    "JobRequeue": "1",
    "PreemptMode": "OFF",
}
PARTITION = "PartitionName=gpu Default=YES State=UP MaxTime=1-00:00:00 MaxNodes=UNLIMITED TotalNodes=64 PreemptMode=OFF"
SACCTMGR = (
    'case "$*" in *DefaultQOS*) echo "lab|debug,normal,long|normal||";; *assoc*) echo "lab||debug,normal,long";;'
    ' *) echo "debug|00:10:00|||||"; echo "normal|12:00:00|||500||"; echo "long|7-00:00:00|||||";'
    ' echo "part_gpu|10:00:00|||||cpu=9,node=32"; esac'
)
Statuses = dict[str, str]
Examine = Callable[..., Statuses]


@pytest.fixture
def examine(tools: Callable[..., None], tmp_path: Path) -> Examine:
    """`examine(overrides, MinJobAge="10 sec", partition=..., sinfo=...)`: the status of each finding by name."""

    def run(overrides: Sequence[str] = (), partition: str = PARTITION, **changed: Any) -> Statuses:
        scripts = {
            "sinfo": 'case "$*" in *%c*) echo "gpu*|up|1-00:00:00|64|64|gpu:mi250:8";; *) echo gpu:mi250:8; esac',
            "sacct": "true",
            "sbatch": "cat > /dev/null; echo 'sbatch: Job 7 to start at noon' >&2",
            "sacctmgr": SACCTMGR,
        } | {name: changed.pop(name) for name in ("sinfo", "sacct", "sbatch", "sacctmgr") if name in changed}
        lines = "\n".join(f"{name} = {value}" for name, value in (CONFIG | changed).items())
        scontrol = f'case "$*" in *partition*) echo "{partition}";; *) echo "{lines}"; esac'
        tools(scontrol=scontrol, srun="true", squeue="true", scancel="true", **scripts)
        settings = load(["cluster=frontier", "slurm.account=lab", "slurm.time_limit_minutes=60", *overrides])
        found = list(slurm_findings(TinyJob(settings.slurm, settings.cluster, DoctorFolder(tmp_path))))
        assert all(bool(each.remedy) == (each.status in ("warning", "problem")) for each in found), found
        worst = sorted(found, key=lambda each: ("ok", "skipped", "warning", "problem").index(each.status))
        return {each.name: each.status for each in worst}

    return run


def test_a_site_that_suits_the_settings_is_ok(examine: Examine) -> None:
    statuses = examine(["cluster.num_nodes=64", "slurm.qos=normal"])
    assert set(statuses.values()) == {"ok"}, statuses


@pytest.mark.parametrize(
    ("overrides", "changed", "name", "status"),
    [
        (["slurm.partition=none-such"], {}, "partition", "problem"),
        ([], {"partition": PARTITION.replace("State=UP", "State=DOWN")}, "partition", "problem"),
        (["slurm.time_limit_minutes=2000"], {}, "time limit", "problem"),
        (["slurm.time_limit_minutes=800", "slurm.qos=normal"], {}, "QOS", "problem"),
        (["slurm.qos=none-such"], {}, "QOS", "problem"),
        ([], {}, "QOS", "ok"),
        ([], {"sacctmgr": SACCTMGR.replace("|normal||", "|debug||")}, "QOS", "problem"),
        (["slurm.account=other"], {}, "account", "problem"),
        (["slurm.account=other"], {"AccountingStorageEnforce": "none"}, "account", "warning"),
        (["cluster.num_nodes=128"], {}, "nodes", "warning"),
        (["slurm.max_array_size=5000"], {}, "job arrays", "problem"),
        ([], {"MaxArraySize": "0"}, "job arrays", "warning"),
        ([], {"AccountingStorageType": "accounting_storage/none", "MinJobAge": "10 sec"}, "accounting", "warning"),
        ([], {"sacct": "echo 'sacct: error: no slurmdbd' >&2; exit 1"}, "accounting", "warning"),
        ([], {"PreemptMode": "CANCEL"}, "preemption", "warning"),
        ([], {"PreemptMode": "GANG,SUSPEND"}, "preemption", "warning"),
        ([], {"sinfo": "echo '(null)'"}, "devices", "problem"),
        ([], {"sinfo": "echo 'gpu:a100:4(S:0-1)'"}, "devices", "warning"),
        (["slurm.gpu_request=none"], {"sinfo": "echo 'gpu:a100:4'"}, "devices", "warning"),
        (["slurm.gpu_request=none"], {"sinfo": "echo '(null)'"}, "devices", "ok"),
        (["slurm.cpus_per_task=9"], {}, "cores", "problem"),
        (["slurm.time_limit_minutes=660"], {"partition": f"{PARTITION} QoS=part_gpu"}, "QOS", "problem"),
        (["cluster.num_nodes=64"], {"partition": f"{PARTITION} QoS=part_gpu"}, "QOS", "warning"),
        (["cluster.num_nodes=32"], {"partition": f"{PARTITION} QoS=part_gpu"}, "QOS", "ok"),
        ([], {"sbatch": "cat > /dev/null; echo 'invalid account' >&2; exit 1"}, "a sweep's job", "problem"),
    ],
)
def test_what_does_not_suit_is_found(
    overrides: list[str], changed: dict[str, str], name: str, status: str, examine: Examine
) -> None:
    assert examine(overrides, **changed)[name] == status


OTHER = PARTITION.replace("=gpu Default=YES", "=short").replace("=1-00:00:00", "=10:00")
DOWN = PARTITION.replace("=gpu Default=YES", "=down").replace("=UP", "=DOWN")
LINK = "cluster.links=[{name: net, num_devices: 840, bandwidth_bytes_per_second: 25e9, latency_seconds: 1e-6}]"
MIG = {"sinfo": 'case "$*" in *%c*) echo "gpu*|up|1:00|64|64|gpu:a100:3";; *) echo gpu:a100:3,gpu:a100_1g.5gb:7; esac'}


@pytest.mark.parametrize(
    ("chosen", "time_limit", "expected"),
    [
        ("gpu,short", 60, ("ok", "ok")),
        ("short,gpu", 60, ("ok", "ok")),
        ("short,gpu,down", 60, ("ok", "ok")),
        ("down,short", 5, ("ok", "ok")),
        ("short", 60, ("ok", "problem")),
        ("down", 60, ("problem", "ok")),
        ("gpu,none-such", 60, ("problem", None)),
        ("gpu,short", 3000, ("ok", "problem")),
    ],
)
def test_one_suitable_partition_of_several_is_enough(
    chosen: str, time_limit: int, expected: tuple[str, str | None], examine: Examine
) -> None:
    overrides = [f"slurm.partition='{chosen}'", f"slurm.time_limit_minutes={time_limit}", "cluster.num_nodes=8"]
    statuses = examine(overrides, partition="\n".join((PARTITION, OTHER, DOWN)))
    assert (statuses["partition"], statuses.get("time limit")) == expected


@pytest.mark.parametrize(
    ("overrides", "status"),
    [
        (["cluster.devices_per_node=3", "slurm.gpu_type=a100"], "ok"),
        (["cluster.devices_per_node=3", "slurm.gpu_type=A100"], "ok"),
        (["cluster.devices_per_node=7", "slurm.gpu_type=a100_1g.5gb"], "ok"),
        (["cluster.devices_per_node=4", "slurm.gpu_type=a100"], "warning"),
        (["cluster.devices_per_node=3"], "warning"),
        (["cluster.devices_per_node=3", "slurm.gpu_type=h100"], "problem"),
    ],
)
def test_parts_of_devices_beside_whole_ones_are_no_fault(overrides: list[str], status: str, examine: Examine) -> None:
    assert examine([*overrides, LINK, "cluster.num_nodes=8"], **MIG)["devices"] == status


def test_without_the_tools_nothing_more_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = load(["cluster=frontier"])
    (found,) = slurm_findings(TinyJob(settings.slurm, settings.cluster, DoctorFolder(tmp_path)))
    assert found.status == "problem"
    assert "srun" in found.says


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 30),
        ("30:30", 30.5),
        ("1:30:00", 90),
        ("2-12:00:00", 3600),
        ("2-12", 3600),
        ("UNLIMITED", None),
        ("", None),
    ],
)
def test_slurms_durations(text: str, expected: float | None) -> None:
    assert minutes(text) == expected


def test_slurms_pairs() -> None:
    assert pairs_of_lines("A = 1\nB  = x y\nSlurmctldHost[0] = vm\n") == {
        "A": "1",
        "B": "x y",
        "SlurmctldHost[0]": "vm",
    }
    assert pairs_of_words("A=1 B=x=y C") == {"A": "1", "B": "x=y"}
