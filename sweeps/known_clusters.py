"""Clusters by the names that tables of configurations give their devices. Each cluster is composed once."""

from __future__ import annotations

from functools import cache

import yaml

from conf.errors import ConfigError
from conf.load import CONF_DIR, load, load_cluster, options
from conf.schema import ClusterSpec
from conf.settings import Settings


@cache
def cluster_named(name: str) -> ClusterSpec:
    """A cluster of conf/cluster, composed once."""
    return load_cluster(name)


@cache
def default_settings() -> Settings:
    """What the configuration says where nobody chooses; a price takes only data and training from it."""
    return load(["data=synthetic"])


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
