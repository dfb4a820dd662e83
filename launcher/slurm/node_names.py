"""Names of nodes: Slurm's short form, and the ranks of a heterogeneous job that run on each.

srun's messages count the tasks of each component from 0, while ranks are counted through all of them. The job's script
therefore says after a failed step which ranks were where.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

from sweeps.folder.submission import JobShape

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
            yield from _names(f"{part[: ranges.start()]}{number:0{len(first)}d}{part[ranges.end() :]}")


def first_rank_lines(shape: JobShape) -> list[str]:
    """Shell lines after the step of a heterogeneous job: if it failed they name the nodes; they end as it did."""
    sizes = [part.num_nodes * part.tasks_per_node for part in shape.parts]
    lines = ["ended=$?", 'if [ "$ended" -ne 0 ]; then']
    for group, first in enumerate([0, *accumulate(sizes)][:-1]):
        lines.append(f'  echo "trisweep: ranks from {first} on are those of $SLURM_JOB_NODELIST_HET_GROUP_{group}" >&2')
    return [*lines, "fi", 'exit "$ended"']


def first_ranks(log: str) -> dict[str, int]:
    """The first rank of the component of each node, from what the script said; empty for any other job."""
    return {node: int(first) for first, nodes in FIRST_RANK.findall(log) for node in node_names(nodes)}
