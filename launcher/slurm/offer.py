"""What Slurm offers to jobs: partitions, the nodes in them, their devices, and how long a job may last."""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.slurm.tools import ask, minutes

COLUMNS = "%P|%a|%l|%D|%c|%G"
GPUS = re.compile(r"\bgpu:(?:([^:,(|]+):)?(\d+)")
"""`gpu:a100:4(S:0-1)` and `gpu:4`, of which Slurm may name several with commas between them."""


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
    told = ask("sinfo", "--noheader", f"--format={COLUMNS}")
    return [kind for line in told.stdout.splitlines() if told.ok and (kind := _kind(line)) is not None]


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
