"""The cluster of a row of a table: the one it names, or the one that claims its device, with the row's own nodes.

Tables have hundreds of rows on a few clusters, and composing a cluster is slow, so all answers are cached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache

from conf.compose.complaints import require_option
from conf.compose.load import cluster_named
from conf.errors import ConfigError
from conf.folders import options, path_of
from conf.nearest import most_like
from conf.types.cluster_spec import ClusterSpec, LinkSpec
from conf.yaml_text import file_text, yaml_content
from sweeps.table.cells import Row, integer_of, match_in, number_of, text_of

NAME = re.compile(r"^name: *([^#\n]*[^#\s])", re.MULTILINE)
NOISE = re.compile(
    r"\([^)]*\)|\b\d{3,4} ?w(?:atts?)?(?: (?:power )?(?:cap|limit))?\b"
    r"|\b(?:nvidia|amd|intel|instinct|data center|tensor core|gpu|sxm\d?|oam|dgx|hgx|nvl72|superchip|hbm\w*)\b"
)
"""What makers and vendors add to a device's name, and other tables leave out."""


def cluster_of(row: Row) -> ClusterSpec:
    """The cluster that the row names, else the one that claims its device, as the row says that it hangs together."""
    named = text_of(row, "cluster")
    chosen = _usual_cluster(row, named, text_of(row, "gpu"))
    return with_power_of(with_network_of(with_nodes_of(chosen, row), row), row)


def _usual_cluster(row: Row, cluster: str, gpu: str) -> ClusterSpec:
    if cluster:
        require_option("cluster", cluster, "cluster")
    if not gpu and not cluster:
        raise ConfigError("gpu", gpu, "is empty, and no device is taken for granted", _known())
    if not gpu:
        return cluster_named(cluster)
    claimed_by = next((found for name in _spellings(gpu) if (found := clusters_by_gpu().get(name))), None)
    claimed_by = claimed_by or clusters_by_device().get(gpu.lower())
    if not claimed_by:
        raise ConfigError("gpu", gpu, "is not the device of a known cluster", _meant_gpu(gpu))
    if not cluster and len(claimed_by) > 1:
        remedy = f"Name one of {', '.join(claimed_by)} in the column cluster."
        raise ConfigError("gpu", gpu, "is claimed by more than one cluster", remedy)
    if not cluster:
        return _with_such_nodes(cluster_named(claimed_by[0]), row)
    chosen = cluster_named(cluster)
    # Devices are compared, not clusters: a named cluster may have the device without claiming this name for it.
    if chosen.device.name not in {cluster_named(claim).device.name for claim in claimed_by}:
        problem = f"is not the device of cluster = {cluster}, which has {chosen.device.name}"
        raise ConfigError("gpu", gpu, problem, "Correct one of the two, or leave gpu empty.")
    return chosen


def _with_such_nodes(usual: ClusterSpec, row: Row) -> ClusterSpec:
    """The cluster file with this device and the row's number of devices per node, where the usual one has another.

    Boards of four GPUs, for one, have no switch between them, as boards of eight of the same GPU do.
    """
    per_node = integer_of(row, "gpus_per_node", default=usual.devices_per_node)
    if per_node == usual.devices_per_node:
        return usual
    kin = (name for name in options("cluster") if _facts(name).get("devices_per_node") == per_node)
    found = (cluster_named(name) for name in kin)
    return next((cluster for cluster in found if cluster.device.name == usual.device.name), usual)


def plain_name(gpu: str) -> str:
    """A device's name without what vendors add: `NVIDIA H100 SXM5 80 GB` and `H100-80GB-SXM` are both `80gb h100`."""
    without = NOISE.sub(" ", re.sub(r"[-_/,]+", " ", gpu.lower()))
    return " ".join(sorted(re.sub(r"(\d) *gi?b\b", r"\1gb", without).split()))


def _known() -> str:
    return f"Known: {', '.join(known_gpus())}."


@cache
def clusters_by_gpu() -> dict[str, tuple[str, ...]]:
    """Clusters that claim a `gpu` name, by that name in lower case, and by its `plain_name` unless it has a remark.

    Read from the files themselves: composing all of them would cost a second, and only a few are needed.
    """
    return _clusters_by(lambda cluster: {each for name in _gpu_names(cluster) for each in _spellings(name)})


@cache
def clusters_by_device() -> dict[str, tuple[str, ...]]:
    """Clusters by their device, by the name of its file and by the name that reports print, in lower case."""
    return _clusters_by(lambda cluster: {name.lower() for name in _device_names(cluster)})


def _clusters_by(names_of: Callable[[str], set[str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for cluster in options("cluster"):
        for name in names_of(cluster):
            found[name] = (*found.get(name, ()), cluster)
    return found


def _device_names(cluster: str) -> set[str]:
    defaults = _facts(cluster).get("defaults")
    chosen = [each for each in defaults if isinstance(each, dict)] if isinstance(defaults, list) else []
    files = [str(file) for each in chosen for group, file in each.items() if "/device@" in str(group)]
    paths = [path for file in files if (path := path_of("device", file)) is not None]
    named = [NAME.search(file_text(path)) for path in paths]
    return {*files, *(match[1] for match in named if match)}


def _meant_gpu(gpu: str) -> str:
    """The known names that begin like this one or are like it; all of them where none is. Or it is a cluster's name."""
    if gpu in options("cluster"):
        return "It is a cluster's name: put it into a column cluster."
    begin_alike = [name for name in known_gpus() if name.lower().startswith(gpu.lower())]
    if begin_alike:
        return f"Did you mean {' or '.join(begin_alike)}?"
    meant = most_like(gpu, known_gpus())
    return f"Did you mean {meant}?" if meant else _known()


def _spellings(name: str) -> tuple[str, ...]:
    return (name.lower(),) if "(" in name else (name.lower(), plain_name(name))


@cache
def known_gpus() -> tuple[str, ...]:
    """Every `gpu` name that some cluster claims, as it is written there."""
    return tuple(dict.fromkeys(name for cluster in options("cluster") for name in _gpu_names(cluster)))


def _gpu_names(cluster: str) -> tuple[str, ...]:
    names = _facts(cluster).get("gpu_names")
    return tuple(str(name) for name in names) if isinstance(names, list) else ()


@cache
def _facts(cluster: str) -> dict[str, object]:
    """The content of a cluster's file, before it is composed."""
    path = path_of("cluster", cluster)
    assert path is not None  # the name is an option
    content = yaml_content(file_text(path), path, "cluster")
    return content if isinstance(content, dict) else {}


PORTS = re.compile(r"(\d+) x (\d+)")
"""`4 x 100`: ports, and gigabits per second of each."""
GIGABIT = 1e9 / 8  # bytes
MOST_PER_NODE = 1024


def with_nodes_of(cluster: ClusterSpec, row: Row) -> ClusterSpec:
    """The cluster with as many devices per node as the row says, each with its own part of the network as before."""
    per_node = integer_of(row, "gpus_per_node", default=cluster.devices_per_node, most=MOST_PER_NODE)
    if per_node == cluster.devices_per_node:
        return cluster
    # The tier that ends with a node still does; those beyond it, such as a rack's, stay as they are.
    links = (
        link.model_copy(update={"num_devices": per_node}) if link.num_devices == cluster.devices_per_node else link
        for link in cluster.links
    )
    return cluster.model_copy(update={"devices_per_node": per_node, "links": tuple(_widening_links(links))})


def _widening_links(links: Iterable[LinkSpec]) -> list[LinkSpec]:
    """The links without those that span no more than the one before."""
    kept: list[LinkSpec] = []
    for link in links:
        if not kept or link.num_devices > kept[-1].num_devices:
            kept.append(link)
    return kept


def with_network_of(cluster: ClusterSpec, row: Row) -> ClusterSpec:
    """The cluster with the network between nodes that the row states, shared by the devices of a node."""
    ports = PORTS.fullmatch(text_of(row, "network_gbits_per_node"))
    gigabits = int(ports[1]) * int(ports[2]) if ports else number_of(row, "network_gbits_per_node")
    if gigabits == 0:
        problem, remedy = "is not above zero", "Correct the cell, or leave it empty."
        raise ConfigError("network_gbits_per_node", text_of(row, "network_gbits_per_node"), problem, remedy)
    if gigabits is None or len(cluster.links) < 2:
        return cluster
    widest = cluster.links[-1].model_copy(
        update={"bandwidth_bytes_per_second": gigabits * GIGABIT / cluster.devices_per_node}
    )
    return cluster.model_copy(update={"links": (*cluster.links[:-1], widest)})


def with_power_of(cluster: ClusterSpec, row: Row) -> ClusterSpec:
    """The cluster with devices that may draw no more power than the row states: their products are slower by as much.

    A product that keeps all units busy takes the power that there is, so that its rate falls with it. Source:
    conf/cluster/grand-teton.yaml, whose 500 W of 700 W are the one limit that a published table of steps states.
    """
    in_name, device = match_in(row, r"\b(\d{3,4}) ?w(?:atts?)? (?:power )?(?:cap|limit)", "gpu"), cluster.device
    watts = number_of(row, "power_limit_watts") or (float(in_name[1]) if in_name else None)
    if watts is None or watts >= device.watts:
        return cluster
    efficiency = cluster.efficiency.model_copy(update={"matmul": cluster.efficiency.matmul * watts / device.watts})
    return cluster.model_copy(update={"device": device.model_copy(update={"watts": watts}), "efficiency": efficiency})
