"""A figure that is a million off is refused with what was probably meant; an unusual one gets a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from conf.compose.load import compose_tree, load, load_cluster
from conf.compose.plausible import doubts
from conf.compose.tree import Tree
from conf.errors import ConfigError
from conf.folders import conf_dir, options
from tests.messages import refused

SELENE = "cluster=selene"


def selene(num_nodes: int, *num_devices: int) -> Tree:
    """The cluster with that many nodes of eight, and tiers of those extents."""
    cluster: Tree = compose_tree([SELENE])["cluster"]
    links = [{**cluster["links"][0], "num_devices": extent} for extent in num_devices]
    return {**cluster, "num_nodes": num_nodes, "links": links}


def with_link(**values: float) -> Tree:
    cluster: Tree = compose_tree([SELENE])["cluster"]
    return {**cluster, "links": [{**cluster["links"][0], **values}, *cluster["links"][1:]]}


@pytest.mark.parametrize("name", options("cluster"))
def test_every_cluster_of_the_package_is_beyond_doubt(name: str) -> None:
    load_cluster(name)
    assert doubts(compose_tree([f"cluster={name}"])["cluster"]) == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cluster.device.memory_bytes", "80"),
        ("cluster.device.memory_bytes", "81559"),
        ("cluster.device.memory_bandwidth_bytes_per_second", "3.35"),
        ("cluster.device.memory_bandwidth_bytes_per_second", "3350"),
        ("cluster.device.peak_flops_per_second.bf16", "312"),
        ("cluster.device.watts", "700000"),
        ("cluster.efficiency.kernel_seconds", "7.3"),
    ],
)
def test_a_figure_without_its_unit_is_refused_with_what_was_meant(key: str, value: str) -> None:
    with refused(ConfigError, key):
        load([SELENE, f"{key}={value}"])


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"bandwidth_bytes_per_second": 900}, "cluster.links.0.bandwidth_bytes_per_second"),
        ({"latency_seconds": 5}, "cluster.links.0.latency_seconds"),
    ],
)
def test_a_link_without_its_unit_is_refused_with_what_was_meant(values: dict[str, float], key: str) -> None:
    with refused(ConfigError, key):
        doubts(with_link(**values))


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (400, "If 400 Gb/s was meant, write 50e9; if 400 GB/s, write 400e9."),
        (200, "If 200 Gb/s was meant, write 25e9; if 200 GB/s, write 200e9."),
        (25, "If 25 Gb/s was meant, write 3.125e9; if 25 GB/s, write 25e9."),
        (400e9, "If 4e+11 bits a second was meant, write 50e9."),
        (200e9, "write 25e9."),
        (800e9, "write 100e9."),
    ],
)
def test_a_network_s_link_is_stated_in_bits_by_those_who_sell_it(value: float, meant: str) -> None:
    cluster: Tree = compose_tree([SELENE])["cluster"]
    inside, network = cluster["links"]
    (said,) = _said({**cluster, "links": [inside, {**network, "bandwidth_bytes_per_second": value}]})
    assert "links.1.bandwidth_bytes_per_second = " in said
    assert meant in said
    for name, bandwidth in (("nvlink", 900e9), ("infiniband", 50e9), ("infiniband", 100e9)):
        link = {**network, "name": name, "bandwidth_bytes_per_second": bandwidth}
        assert _said({**cluster, "links": [inside, link]}) == []


def _said(cluster: Tree) -> list[str]:
    try:
        return [*doubts(cluster)]
    except ConfigError as error:
        return [str(error)]


def test_an_unusual_figure_is_allowed_and_doubted() -> None:
    (doubt,) = doubts(with_link(latency_seconds=0.02))
    assert doubt.startswith("cluster.links.0.latency_seconds = 0.02 is unusual in seconds, usually")
    assert doubts(with_link(latency_seconds=0.0)) == ()


@pytest.mark.parametrize(
    "tiers",
    [(3, 128), (3,)],
)
def test_tiers_that_cannot_connect_the_nodes_are_refused(tiers: tuple[int, ...]) -> None:
    with refused(ConfigError, "cluster.links.0.num_devices"):
        doubts(selene(16, *tiers))


def test_a_link_that_is_taken_beyond_what_it_connects_is_doubted() -> None:
    (doubt,) = doubts(selene(32, 8, 128))
    assert "does not reach all 256 devices" in doubt
    assert doubts(selene(1, 8)) == doubts(selene(2, 4, 16)) == ()


def test_nodes_without_a_link_between_them_are_doubted() -> None:
    """A person may try a cluster of one node as one of several, as tests of Slurm do."""
    (doubt,) = doubts(selene(16, 8))
    assert doubt.startswith("cluster.links has none between the 16 nodes")


def test_all_that_is_wrong_in_a_cluster_s_file_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures in a wrong unit hid values of a wrong type, of which each hid the next, and a wrong name hid all."""
    cluster = yaml.safe_load((conf_dir() / "cluster" / "selene.yaml").read_text())
    cluster |= {"reserved_memory_bytes": -1, "fragmentation": "lots", "num_node": 3}
    cluster["links"][0]["bandwidth_bytes_per_second"] = 300
    del cluster["links"][1]["latency_seconds"]
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text(yaml.safe_dump(cluster))
    monkeypatch.setattr("conf.folders._given", (tmp_path,))
    refusals = []
    for compose_it in (lambda: load_cluster("mine"), lambda: compose_tree(["cluster=mine"])):
        with pytest.raises(ConfigError) as caught:
            compose_it()
        refusals.append([line.split(" = ")[0] for line in str(caught.value).splitlines()])
    said = ["name", "links.0.bandwidth_bytes_per_second", "reserved_memory_bytes", "fragmentation"]
    said += ["links.1.latency_seconds", "num_node"]
    assert refusals == 2 * [[f"cluster.{key}" for key in said]]


def test_values_of_several_groups_that_are_wrong_are_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load(["training.seed=x", "slurm.time_limit_minutes=soon", "trainer.name=a b"])
    keys = [line.split(" = ")[0] for line in str(caught.value).splitlines()]
    assert sorted(keys) == ["slurm.time_limit_minutes", "trainer.name", "training.seed"]
