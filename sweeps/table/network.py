"""How the nodes of a row's cluster hang together, where the row says it: devices per node, and a node's network."""

from __future__ import annotations

import re
from collections.abc import Iterable

from conf.cluster_spec import ClusterSpec, LinkSpec
from sweeps.table.cells import Row, count_of, number_of, text_of

PORTS = re.compile(r"(\d+) x (\d+)")
"""`4 x 100`: ports, and gigabits per second of each."""
GIGABIT = 1e9 / 8  # bytes
MOST_PER_NODE = 1024


def with_nodes_of(cluster: ClusterSpec, row: Row) -> ClusterSpec:
    """The cluster with as many devices per node as the row says, each with its own part of the network as before."""
    per_node = count_of(row, "gpus_per_node", default=cluster.devices_per_node, most=MOST_PER_NODE)
    if per_node == cluster.devices_per_node:
        return cluster
    links = tuple(_growing(_resized(link, cluster.devices_per_node, per_node) for link in cluster.links))
    return cluster.model_copy(update={"devices_per_node": per_node, "links": links})


def _resized(link: LinkSpec, before: int, per_node: int) -> LinkSpec:
    """The tier that ends with a node still does; those beyond it, such as a rack's, stay as they are."""
    return link.model_copy(update={"num_devices": per_node}) if link.num_devices == before else link


def _growing(links: Iterable[LinkSpec]) -> list[LinkSpec]:
    """The links without those that span no more than the one before."""
    kept: list[LinkSpec] = []
    for link in links:
        if not kept or link.num_devices > kept[-1].num_devices:
            kept.append(link)
    return kept


def with_network_of(cluster: ClusterSpec, row: Row) -> ClusterSpec:
    """The cluster with the network between nodes that the row states, shared by the devices of a node."""
    ports = PORTS.fullmatch(text_of(row, "network_gbits_per_node"))
    gigabits = int(ports[1]) * float(ports[2]) if ports else number_of(row, "network_gbits_per_node")
    if gigabits is None or len(cluster.links) < 2:
        return cluster
    widest = cluster.links[-1].model_copy(
        update={"bandwidth_bytes_per_second": gigabits * GIGABIT / cluster.devices_per_node}
    )
    return cluster.model_copy(update={"links": (*cluster.links[:-1], widest)})
