"""The Slurm cluster that this machine talks to: name, clock, limits, and the nodes that it offers to jobs."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import NamedTuple

from launcher.slurm.tools import ask, minutes

ANSWER_SECONDS = 10
_KEPT_SECONDS = 10.0
_known: dict[tuple[str, str], tuple[float, SlurmCluster]] = {}
"""What was said, and when, by where it was asked."""

COLUMNS = "%P|%a|%l|%D|%c|%G"
GPUS = re.compile(r"\bgpu:(?:([^:,(|]+):)?(\d+)")
"""`gpu:a100:4(S:0-1)` and `gpu:4`, of which Slurm may name several with commas between them."""


class SlurmCluster(NamedTuple):
    """The facts that the Slurm controller states about itself.

    Attributes:
        name: as in slurm.conf; None where nothing answers.
        now: seconds since the epoch by the controller's clock, which is the one that job times are told in. The clock
            of a login node may be an hour off.
        max_array_size: elements that one array may have; None where nothing answers.
        enforces_limits: of accounts and QOS, such as MaxSubmitJobs.
    """

    name: str | None
    now: float
    max_array_size: int | None
    enforces_limits: bool = False


def this_cluster() -> SlurmCluster:
    """Return the facts about the controller; within one command it is asked once.

    Where there is no Slurm, name and size are None, and the clock is this machine's.
    """
    where = (os.environ.get("SLURM_CONF", ""), shutil.which("scontrol") or "")
    stored = _known.get(where)
    age = time.monotonic() - stored[0] if stored else _KEPT_SECONDS
    if stored and age < _KEPT_SECONDS:
        return stored[1]._replace(now=stored[1].now + age)
    cluster = _ask_controller()
    if cluster.name is not None:  # a controller that is away is asked again
        _known[where] = time.monotonic(), cluster
    return cluster


def _ask_controller() -> SlurmCluster:
    shown = _config_text()
    # A MaxArraySize of 0 forbids arrays, so that every trial becomes a job of its own.
    size = re.search(r"^MaxArraySize\s*=\s*(\d+)", shown, re.MULTILINE)
    name = re.search(r"^ClusterName\s*=\s*(\S+)", shown, re.MULTILINE)
    enforced = re.search(r"^AccountingStorageEnforce\s*=.*\b(limits|safe|qos|all)\b", shown, re.MULTILINE)
    most = max(1, int(size.group(1))) if size else None
    return SlurmCluster(name.group(1) if name else None, _clock(shown), most, enforced is not None)


def _config_text() -> str:
    if not shutil.which("scontrol"):
        return ""
    command = ["scontrol", "show", "config"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False).stdout
    except subprocess.TimeoutExpired:
        return ""


def _clock(shown: str) -> float:
    """The controller's time from the first line of its answer; this machine's where there is no such line.

    The line has no time zone: scontrol writes it in that of this machine, like all the times that Slurm shows.
    """
    written = re.search(r"^Configuration data as of (\S+)", shown, re.MULTILINE)
    try:
        return datetime.datetime.fromisoformat(written.group(1)).timestamp() if written else time.time()
    except ValueError:
        return time.time()


@dataclass(frozen=True)
class NodeKind:
    """Nodes of a partition that are alike.

    Attributes:
        is_default: jobs that name no partition go to this one.
        most_minutes: the longest that a job may last; None where the partition sets no limit.
        gpu_type: as Slurm calls it; None where it says nothing but their number.
    """

    partition: str
    is_default: bool
    is_up: bool
    most_minutes: float | None
    num_nodes: int
    num_cores: int
    num_gpus: int
    gpu_type: str | None


def node_kinds() -> list[NodeKind]:
    """Every kind of nodes of every partition; none where Slurm does not answer."""
    result = ask("sinfo", "--noheader", f"--format={COLUMNS}")
    return [kind for line in result.stdout.splitlines() if result.ok and (kind := _kind(line)) is not None]


def best_of(kinds: list[NodeKind], partition: str | None = None) -> NodeKind | None:
    """The nodes to describe: with devices before those without, of the default partition before others, then most.

    Of equals it is the first by name: the order in which sinfo lists them depends on what runs on them.
    """
    by_name = sorted(kinds, key=lambda kind: (kind.partition, kind.gpu_type or ""))
    wanted = [kind for kind in by_name if partition in (None, kind.partition)]
    return max(wanted, key=lambda kind: (kind.is_up, kind.num_gpus > 0, kind.is_default, kind.num_nodes), default=None)


def _kind(line: str) -> NodeKind | None:
    fields = line.strip().split("|")
    # A site's wrapper may print a banner.
    if len(fields) != COLUMNS.count("|") + 1 or not fields[3].isdigit():
        return None
    name, state, limit, nodes, cores, gres = fields
    gpus = GPUS.search(gres)
    number = re.match(r"\d+", cores)
    return NodeKind(
        partition=name.rstrip("*"),
        is_default=name.endswith("*"),
        is_up=state == "up",
        most_minutes=minutes(limit),
        num_nodes=int(nodes),
        num_cores=int(number.group()) if number else 1,
        num_gpus=int(gpus[2]) if gpus else 0,
        gpu_type=gpus[1] if gpus else None,
    )
