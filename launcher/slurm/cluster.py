"""The Slurm cluster that this machine talks to: name, clock, limits, and the nodes that it offers to jobs."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import time
from dataclasses import dataclass
from typing import NamedTuple

from launcher.tools import ask, gpus_in, minutes, pairs_of_lines

_KEPT_SECONDS = 60.0
_known: dict[tuple[str, str], tuple[float, SlurmCluster]] = {}
"""What was said, and when, by where it was asked."""

COLUMNS = "%P|%a|%l|%D|%c|%G"


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
        # The controller's clock has gone on since, by as much as ours.
        return stored[1]._replace(now=stored[1].now + age)
    cluster = _ask_controller()
    if cluster.name is not None:  # a controller that is away is asked again
        _known[where] = time.monotonic(), cluster
    return cluster


def _ask_controller() -> SlurmCluster:
    shown = ask("scontrol", "show", "config").stdout
    settings = pairs_of_lines(shown)
    # A MaxArraySize of 0 forbids arrays, so that every trial becomes a job of its own.
    size = settings.get("MaxArraySize", "")
    most = max(1, int(size)) if size.isdigit() else None
    enforced = re.search(r"\b(limits|safe|qos|all)\b", settings.get("AccountingStorageEnforce", ""))
    return SlurmCluster(settings.get("ClusterName") or None, _clock(shown), most, enforced is not None)


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
    gpu_type, num_gpus = next(iter(gpus_in(gres)), ("", 0))
    # sinfo writes `64+` where the nodes of a line have different numbers of cores.
    number = re.match(r"\d+", cores)
    return NodeKind(
        # sinfo marks the default partition with a star.
        partition=name.rstrip("*"),
        is_default=name.endswith("*"),
        is_up=state == "up",
        most_minutes=minutes(limit),
        num_nodes=int(nodes),
        num_cores=int(number.group()) if number else 1,
        num_gpus=num_gpus,
        gpu_type=gpu_type or None,
    )
