"""One job over several types of devices: each type holds a block of consecutive pipeline stages.

All stages have the same tensor- and data-parallel sizes and run the same micro-batches, so that a replica's pipeline
crosses every type. In the configuration a block is `CLUSTER:DEVICES`, and `+` puts blocks one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from conf.cluster_spec import ClusterSpec
from conf.errors import ConfigError, InfeasiblePlan
from conf.schema import Count, Frozen

if TYPE_CHECKING:
    from conf.setup import Setup

KEY, EXAMPLE = "mixed", "selene:512+dgx-h100:512"
MOST_DIGITS = 18  # more than any number of devices has, and few enough for Python to read quickly


class StageBlock(Frozen):
    """Consecutive pipeline stages on so many devices of one cluster."""

    cluster: ClusterSpec
    num_devices: Count

    @property
    def num_nodes(self) -> int:
        return -(-self.num_devices // self.cluster.devices_per_node)

    @property
    def tasks_per_node(self) -> int:
        return self.num_devices // self.num_nodes

    def __str__(self) -> str:
        return f"{self.cluster.name}:{self.num_devices}"


def written_blocks(blocks: Sequence[StageBlock]) -> str:
    """The blocks as the configuration writes them, such as `selene:512+dgx-h100:512`."""
    return "+".join(map(str, blocks))


def named_blocks(text: str, separator: str = "+", example: str = EXAMPLE) -> list[tuple[str, int]]:
    """Clusters and numbers of their devices, from a text such as `selene:512+dgx-h100:512`.

    Raises:
        ConfigError: the text is something else.
    """
    found = []
    for part in text.split(separator):
        name, _, number = part.strip().partition(":")
        if not name or not is_count(number) or int(number) == 0:
            raise ConfigError(KEY, text, "is not a list of clusters and devices", f"Write {example}.")
        found.append((name, int(number)))
    return found


def is_count(text: str) -> bool:
    """Whether it is a number with few enough digits; Python refuses to convert text of thousands of digits."""
    return text.isdecimal() and len(text) <= MOST_DIGITS


def check_blocks(setup: Setup) -> None:
    """Raises InfeasiblePlan where the blocks cannot hold the pipeline of this plan."""
    assert setup.mixed is not None
    shown, example = written_blocks(setup.mixed), f"Write mixed={EXAMPLE}, or mixed=null for one cluster."
    if len(setup.mixed) < 2:
        raise InfeasiblePlan(KEY, shown, "names one block of stages", example)
    if setup.cluster not in [block.cluster for block in setup.mixed]:
        remedy = f"Choose cluster={setup.mixed[0].cluster.name}, whose Slurm settings and folders the job then has."
        raise InfeasiblePlan(KEY, shown, f"does not name the chosen cluster, {setup.cluster.name}", remedy)
    _check_numbers(setup, setup.mixed, shown)
    if len({block.cluster.device.kind for block in setup.mixed}) > 1:
        raise InfeasiblePlan(KEY, shown, "mixes CPUs and GPUs, which cannot send to each other", "Choose one of them.")
    if setup.parallel.schedule == "interleaved":
        problem = f"cannot be interleaved: the last stage would send to the first, over types ({shown})"
        raise InfeasiblePlan("parallel.schedule", "interleaved", problem, "Use schedule=1f1b.")


def _check_numbers(setup: Setup, blocks: Sequence[StageBlock], shown: str) -> None:
    """Every block fills whole stages and, beyond one node, whole nodes; together they are all ranks of the job."""
    total, world_size = sum(block.num_devices for block in blocks), setup.parallel.world_size
    if total != world_size:
        problem, remedy = f"names {total} devices, and parallel.world_size = {world_size}", "Make both the same."
        raise InfeasiblePlan(KEY, shown, problem, remedy)
    replica = setup.parallel.tensor_parallel_size * setup.parallel.context_parallel_size
    size = replica * setup.parallel.pipeline_parallel_size
    stage = world_size // size * replica
    if world_size % size or any(block.num_devices % stage for block in blocks):
        sizes = f"tensor_parallel_size {setup.parallel.tensor_parallel_size} in {setup.parallel.pipeline_parallel_size}"
        problem = f"cannot be cut into equal stages of {world_size / size:g} replicas with {sizes} stages"
        raise InfeasiblePlan(KEY, shown, problem, "Choose sizes with which every block holds whole stages.")
    for block in blocks:
        _check_nodes(block, shown)


def _check_nodes(block: StageBlock, shown: str) -> None:
    cluster = block.cluster
    fills_nodes = block.num_devices <= cluster.devices_per_node or block.num_devices % cluster.devices_per_node == 0
    if block.num_devices > cluster.num_devices or not fills_nodes:
        problem = (
            f"asks {cluster.name} for {block.num_devices} devices, and it has {cluster.num_nodes} nodes of"
            f" {cluster.devices_per_node}, which a job fills if it needs more than one"
        )
        raise InfeasiblePlan(KEY, shown, problem, f"Use up to {cluster.num_devices}.")
