"""Which ranks of a heterogeneous job are on which nodes: what its script says after a failed step, and reading that.

srun's messages count the tasks of each component from 0, while ranks are counted through all of them.
"""

from __future__ import annotations

import re
from itertools import accumulate

from launcher.slurm.node_names import node_names
from sweeps.folder.submission import JobShape

FIRST_RANK = re.compile(r"^trisweep: ranks from (\d+) on are those of (\S+)$", re.MULTILINE)


def saying_first_ranks(shape: JobShape) -> list[str]:
    """Shell lines after the step of a heterogeneous job: if it failed they name the nodes; they end as it did."""
    sizes = [part.num_nodes * part.tasks_per_node for part in shape.parts]
    lines = ["ended=$?", 'if [ "$ended" -ne 0 ]; then']
    for group, first in enumerate([0, *accumulate(sizes)][:-1]):
        lines.append(f'  echo "trisweep: ranks from {first} on are those of $SLURM_JOB_NODELIST_HET_GROUP_{group}" >&2')
    return [*lines, "fi", 'exit "$ended"']


def first_ranks(log: str) -> dict[str, int]:
    """The first rank of the component of each node, from what the script said; empty for any other job."""
    return {node: int(first) for first, nodes in FIRST_RANK.findall(log) for node in node_names(nodes)}
