"""The cluster of a row of a table: the one it names, or the one that claims its device.

Tables have hundreds of rows on a few clusters, and composing a cluster is slow, so all answers are cached.
"""

from __future__ import annotations

from functools import cache

import yaml

from conf.errors import ConfigError
from conf.load import CONF_DIR, load_cluster, options
from conf.world import ClusterSpec
from sweeps.table.cells import Row, text_of


def cluster_of(row: Row) -> ClusterSpec:
    """The cluster that the row names, else the one that claims its device."""
    cluster, gpu = text_of(row, "cluster"), text_of(row, "gpu")
    if cluster and cluster not in options("cluster"):
        raise ConfigError("cluster", cluster, "is no file of conf/cluster", f"Known: {', '.join(options('cluster'))}.")
    if not gpu and not cluster:
        raise ConfigError("gpu", gpu, "is empty, and no device is taken for granted", f"Known: {_shown_gpus()}.")
    if not gpu:
        return cluster_named(cluster)
    claimed_by = clusters_by_gpu().get(gpu.lower())
    if not claimed_by:
        raise ConfigError("gpu", gpu, "is not the device of a known cluster", f"Known: {_shown_gpus()}.")
    if not cluster and len(claimed_by) > 1:
        remedy = f"Name one of {', '.join(claimed_by)} in the column cluster."
        raise ConfigError("gpu", gpu, "is claimed by more than one cluster", remedy)
    chosen = cluster_named(cluster or claimed_by[0])
    # Devices are compared, not clusters: a named cluster may have the device without claiming this name for it.
    if chosen.device.name not in {cluster_named(claim).device.name for claim in claimed_by}:
        problem = f"is not the device of cluster = {cluster}, which has {chosen.device.name}"
        raise ConfigError("gpu", gpu, problem, "Correct one of the two, or leave gpu empty.")
    return chosen


def _shown_gpus() -> str:
    return ", ".join(known_gpus())


@cache
def cluster_named(name: str) -> ClusterSpec:
    """A cluster of conf/cluster, which is composed when it is first asked for."""
    return load_cluster(name)


@cache
def clusters_by_gpu() -> dict[str, tuple[str, ...]]:
    """Clusters that claim a `gpu` name, by that name in lower case.

    Read from the files themselves: composing all of them would cost a second, and only a few are needed.
    """
    claims: dict[str, tuple[str, ...]] = {}
    for cluster in options("cluster"):
        for name in _gpu_names(cluster):
            claims[name.lower()] = (*claims.get(name.lower(), ()), cluster)
    return claims


@cache
def known_gpus() -> tuple[str, ...]:
    """Every `gpu` name that some cluster claims, as it is written there."""
    return tuple(dict.fromkeys(name for cluster in options("cluster") for name in _gpu_names(cluster)))


@cache
def _gpu_names(cluster: str) -> tuple[str, ...]:
    path = CONF_DIR / "cluster" / f"{cluster}.yaml"
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        problem = f"is not valid YAML: {' '.join(str(error).split())[:200]}"
        raise ConfigError("conf/cluster", path.name, problem, "Correct the file.") from None
    names = content.get("gpu_names") if isinstance(content, dict) else None
    return tuple(str(name) for name in names) if isinstance(names, list) else ()
