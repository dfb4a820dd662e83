"""The Slurm cluster that this machine talks to: name, clock, limits, and the nodes that it offers to jobs.

srun's messages count the tasks of each component from 0, while ranks are counted through all of them. The job's script
therefore says after a failed step which ranks were where.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from launcher.tools import ask
from sweeps.folder.submission import JobShape

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
        # The controller's clock has gone on since, by as much as ours.
        return stored[1]._replace(now=stored[1].now + age)
    cluster = _ask_controller()
    if cluster.name is not None:  # a controller that is away is asked again
        _known[where] = time.monotonic(), cluster
    return cluster


def _ask_controller() -> SlurmCluster:
    shown = ask("scontrol", "show", "config").stdout
    # A MaxArraySize of 0 forbids arrays, so that every trial becomes a job of its own.
    size = re.search(r"^MaxArraySize\s*=\s*(\d+)", shown, re.MULTILINE)
    name = re.search(r"^ClusterName\s*=\s*(\S+)", shown, re.MULTILINE)
    enforced = re.search(r"^AccountingStorageEnforce\s*=.*\b(limits|safe|qos|all)\b", shown, re.MULTILINE)
    most = max(1, int(size.group(1))) if size else None
    return SlurmCluster(name.group(1) if name else None, _clock(shown), most, enforced is not None)


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
        num_gpus=int(gpus[2]) if gpus else 0,
        gpu_type=gpus[1] if gpus else None,
    )


PART = re.compile(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*")
RANGES = re.compile(r"\[([^\]]*)\]")

FIRST_RANK = re.compile(r"^trisweep: ranks from (\d+) on are those of (\S+)$", re.MULTILINE)


def node_names(short: str) -> tuple[str, ...]:
    """`node[08-10,12],login1` -> node08, node09, node10, node12, login1."""
    return tuple(name for part in PART.findall(short) for name in _names(part))


def _names(part: str) -> Iterator[str]:
    ranges = RANGES.search(part)
    if ranges is None:
        yield part
        return
    for span in ranges.group(1).split(","):
        first, _, last = span.partition("-")
        for number in range(int(first), int(last or first) + 1):
            # A name may hold several ranges, as that of a rack and a node does.
            # Zeros in front belong to the name, as in node08.
            yield from _names(f"{part[: ranges.start()]}{number:0{len(first)}d}{part[ranges.end() :]}")


def first_rank_lines(shape: JobShape) -> list[str]:
    """Shell lines after the step of a heterogeneous job: if it failed they name the nodes; they end as it did."""
    sizes = [part.num_nodes * part.tasks_per_node for part in shape.parts]
    # The step's status comes first, because the next command of the script sets another.
    lines = ["ended=$?", 'if [ "$ended" -ne 0 ]; then']
    for group, first in enumerate([0, *accumulate(sizes)][:-1]):
        lines.append(f'  echo "trisweep: ranks from {first} on are those of $SLURM_JOB_NODELIST_HET_GROUP_{group}" >&2')
    return [*lines, "fi", 'exit "$ended"']


def first_ranks(log: str) -> dict[str, int]:
    """The first rank of the component of each node, from what the script said; empty for any other job."""
    return {node: int(first) for first, nodes in FIRST_RANK.findall(log) for node in node_names(nodes)}


def pairs_of_lines(text: str) -> dict[str, str]:
    """Parse the output of `scontrol show config`: a `Name = value` on each line."""
    return {name: value.strip() for name, value in re.findall(r"^(\S+)\s*= ?(.*)$", text, re.MULTILINE)}


def pairs_of_words(line: str) -> dict[str, str]:
    """Parse the output of `scontrol -o show partition`: `Name=value` words."""
    return dict(re.findall(r"(?<!\S)([^\s=]+)=(\S*)", line))


def minutes(text: str) -> float | None:
    """Slurm's way to write a duration: `30`, `30:00`, `1:30:00`, `2-12:00:00`; None where it sets no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        return None
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    # With days, or with all three parts, the first is hours; otherwise it is minutes.
    if days is not None or len(numbers) == 3:
        hours, mins, seconds = [*numbers, 0, 0][:3]
    else:
        hours, (mins, seconds) = 0, [*numbers, 0][:2]
    return int(days or 0) * 24 * 60 + hours * 60 + mins + seconds / 60
