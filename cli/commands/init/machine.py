"""The machine that a folder of one's own begins with: what Slurm says of it, and what is taken from a similar one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from conf.compose.load import load_cluster, require_name
from conf.errors import ConfigError
from conf.folders import options, options_of, path_of
from conf.types.cluster_spec import ClusterSpec, LinkSpec
from conf.yaml_text import file_text
from launcher.slurm.cluster import NodeKind, best_of, node_kinds, this_cluster
from sweeps.table.clusters import plain_name

EXAMPLE_DEVICE, EXAMPLE_NODES, EXAMPLE_DEVICES = "a100-80gb", 4, 8
CPU_DEVICE = "cpu"
EXAMPLE_NAME = "my-cluster"
SAYS_NOTHING = frozenset({"tesla", "gcd", "tile", "120gb", "480gb"})
"""What else in a name tells no two of our devices apart: the parts that ours are, and the memory of a GH200's host."""
USUAL_CLUSTER = "selene"
"""The cluster whose links are taken for a device that no cluster has."""


@dataclass(frozen=True)
class DescribedMachine:
    """A machine as its cluster file describes it.

    Attributes:
        offer: the nodes as Slurm tells of them; None where no Slurm answers and all numbers are an example.
        others: the partitions that were not chosen.
        device: an option of group `device`; of a device that none describes, the name of a file to fill in.
        device_candidates: further options that Slurm's name of the device may mean.
        similar: a cluster of the package with the same device, of which links and efficiencies are taken.
        is_like: all of it but partitions is taken from the similar cluster, which was named.
        has_stated_nodes: the command gave their number.
        is_known: False where no option of group `device` is what Slurm names, or where it names nothing.
    """

    name: str
    offer: NodeKind | None
    others: tuple[str, ...]
    device: str
    device_candidates: tuple[str, ...]
    similar: ClusterSpec
    num_nodes: int
    devices_per_node: int
    is_known: bool = True
    is_like: bool = False
    has_stated_nodes: bool = False

    @property
    def source(self) -> str:
        """Where numbers of nodes and devices are from."""
        if self.is_like:
            return f"as cluster {self.similar.name}"
        return "an example" if self.offer is None else f"sinfo, partition {self.offer.partition}"

    @property
    def has_gpus(self) -> bool:
        return self.device != CPU_DEVICE

    @property
    def called(self) -> str:
        """The devices as Slurm names them; by the file that describes them where it does not."""
        return (self.offer and self.offer.gpu_type) or (self.device if self.is_known else "gpu")

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    @property
    def links(self) -> list[LinkSpec]:
        """Tiers like those of the similar cluster, as far as this machine's nodes and devices reach."""
        per_node, network = self.devices_per_node, self.similar.links[-1]
        inside = [link for link in self.similar.links if link.num_devices < per_node]
        widest = next((link for link in self.similar.links if link.num_devices >= per_node), network)
        tiers = [*inside, widest.model_copy(update={"num_devices": per_node})]
        if self.num_nodes > 1:
            tiers.append(network.model_copy(update={"num_devices": self.num_devices}))
        return tiers


def machine(
    name: str | None, partition: str | None, like: str | None = None, nodes: int | None = None
) -> DescribedMachine:
    """The machine that this one submits to, or one like a cluster; an example where there is no Slurm.

    Args:
        nodes: of the machine; None takes all that Slurm, or the cluster, has.
    """
    kinds = node_kinds()
    offer = best_of(kinds, partition)
    found = _described(name or _free_name(this_cluster().name if offer else None), kinds, offer)
    if like is not None:
        similar, device = load_cluster(like), option_taken(like, "device") or found.device
        found = replace(found, device=device, similar=similar, is_like=True, is_known=True)
        found = replace(found, num_nodes=similar.num_nodes, devices_per_node=similar.devices_per_node)
    return found if nodes is None else replace(found, num_nodes=nodes, has_stated_nodes=True)


def _described(name: str, kinds: list[NodeKind], offer: NodeKind | None) -> DescribedMachine:
    if offer is None:
        similar = _similar(EXAMPLE_DEVICE, EXAMPLE_DEVICES)
        return DescribedMachine(name, None, (), EXAMPLE_DEVICE, (), similar, EXAMPLE_NODES, EXAMPLE_DEVICES)
    called = re.sub(r"[^A-Za-z0-9_.-]+", "-", offer.gpu_type or "gpu")
    known = _devices(offer)
    device, *candidates = known or [f"my-{called}"]
    per_node = offer.num_gpus or offer.num_cores
    others = dict.fromkeys(kind.partition for kind in kinds if kind.partition != offer.partition)
    return DescribedMachine(
        name=name,
        offer=offer,
        others=tuple(others),
        device=device,
        device_candidates=tuple(candidates),
        similar=_similar(device, per_node),
        num_nodes=offer.num_nodes,
        devices_per_node=per_node,
        is_known=bool(known),
    )


def partitions() -> list[str]:
    return list(dict.fromkeys(kind.partition for kind in node_kinds()))


def _free_name(slurms: str | None) -> str:
    """Slurm's name of the cluster, if it can be the name of a file and no cluster of the package has it."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", slurms or "").strip("-._") or EXAMPLE_NAME
    try:
        require_name("--name", name)
    except ConfigError:  # null is none
        return f"my-{name}"
    # One's own file of that name is kept.
    is_ours = any(each.name == name and not each.is_own for each in options_of("cluster"))
    return f"my-{name}" if is_ours else name


def _devices(offer: NodeKind) -> list[str]:
    """Options of group `device` that Slurm's name of a type may mean, the most usual first; none where it is another.

    Every word of the name has to be understood: `h100_nvl`, `a100-pcie` and parts of a device are other devices.
    """
    if not offer.num_gpus:
        return [CPU_DEVICE]
    wanted, sizes = _words(plain_name(offer.gpu_type or "").split())
    described = {name: _words(name.split("-")) for name in options("device")}
    fitting = [name for name, (words, gigabytes) in described.items() if words == wanted and sizes <= gigabytes]
    # Without a memory in its name, most chips are those of 80 GB; of others the larger one comes first.
    return sorted(fitting, key=lambda name: ("80" in described[name][1], *described[name][1]), reverse=True)


def _words(name: Iterable[str]) -> tuple[set[str], set[str]]:
    """The words of a device's name that tell it from others, and the gigabytes that it states."""
    words = {*name} - SAYS_NOTHING
    sizes = {word for word in words if re.fullmatch(r"\d+(gb)?", word)}
    return words - sizes, {size.removesuffix("gb") for size in sizes}


def _similar(device: str, per_node: int) -> ClusterSpec:
    """A cluster with this device, rather one whose nodes have as many, and that its tables' names mean."""
    with_it = [load_cluster(name) for name in options("cluster") if option_taken(name, "device") == device]
    fitting = max(
        with_it, key=lambda each: (each.devices_per_node == per_node, each.device.name in each.gpu_names), default=None
    )
    return fitting or load_cluster(USUAL_CLUSTER)


def option_taken(cluster: str, group: str) -> str | None:
    """The option of the group that a cluster's file takes, without composing it; None where it takes none."""
    path = path_of("cluster", cluster)
    assert path is not None  # the name is an option
    match = re.search(rf"^\s*- /{group}@{group}: (\S+)", file_text(path), re.MULTILINE)
    return match[1] if match else None
