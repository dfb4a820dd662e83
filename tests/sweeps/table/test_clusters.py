"""The cluster of a row: devices in the spellings of many tables, and nodes as the row describes them."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from conf.types.cluster_spec import ClusterSpec
from sweeps.table.clusters import cluster_of
from tests.messages import refused

GIGA = 1e9


def cluster(**cells: str) -> ClusterSpec:
    return cluster_of(cells)


def network(found: ClusterSpec) -> float:
    """GB per second and device, between nodes."""
    return found.links[-1].bandwidth_bytes_per_second / GIGA


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("H100-80GB-SXM", "dgx-h100"),
        ("H100 SXM", "dgx-h100"),
        ("NVIDIA H100 80GB HBM3", "dgx-h100"),
        ("H100", "dgx-h100"),
        ("H200", "dgx-h200"),
        ("B200", "dgx-b200"),
        ("NVIDIA GB200 NVL72", "gb200-nvl72"),
        ("GB300", "gb300-nvl72"),
        ("B300", "dgx-b300"),
        ("AMD Instinct MI300X", "mi300x"),
        ("MI325X", "mi325x"),
        ("MI350X", "mi350x"),
        ("MI355X 288 GB", "mi355x"),
        ("A800-80GB-SXM", "a800"),
        ("A100-SXM4-80GB", "selene"),
        ("A100-40GB", "mosaicml-a100-40gb"),
        ("GH200 96GB", "jupiter"),
        ("Intel Data Center GPU Max 1550 tile", "aurora"),
    ],
)
def test_a_device_is_known_in_many_spellings(gpu: str, name: str) -> None:
    assert cluster(gpu=gpu).name == name


@pytest.mark.parametrize("gpu", ["H100 PCIe", "H100 NVL", "V100", "A100-48GB", "MI250X"])
def test_another_kind_or_size_of_a_device_is_not_taken_for_the_usual_one(gpu: str) -> None:
    with refused(ConfigError, "gpu"):
        cluster(gpu=gpu)


@pytest.mark.parametrize(
    "cells",
    [
        {"power_limit_watts": "500"},
        {"gpu": "H100-80GB-SXM 500 W cap"},
    ],
)
def test_devices_with_less_power_multiply_more_slowly(cells: dict[str, str]) -> None:
    usual, capped = cluster(gpu="H100"), cluster(**{"gpu": "H100", **cells})
    assert capped.device.watts == 500
    assert capped.efficiency.matmul == pytest.approx(usual.efficiency.matmul * 500 / 700)
    assert capped.efficiency.memory == usual.efficiency.memory


def test_a_limit_that_the_device_never_reaches_changes_nothing() -> None:
    assert cluster(gpu="H100", power_limit_watts="800") == cluster(gpu="H100")
    # This device is itself what its makers limited.
    assert cluster(gpu="H100-96GB HBM2e 500W cap").efficiency.matmul == 0.51


def test_a_board_of_four_takes_the_cluster_that_has_such_boards() -> None:
    assert cluster(gpu="A100-40GB-SXM", gpus_per_node="4.0").name == "juwels-booster"
    assert cluster(gpu="A100-40GB-SXM", gpus_per_node="8").name == "mosaicml-a100-40gb"


def test_other_nodes_keep_each_devices_part_of_the_network() -> None:
    usual, four = cluster(gpu="H100"), cluster(gpu="H100", gpus_per_node="4")
    assert (four.devices_per_node, four.links[0].num_devices) == (4, 4)
    assert network(four) == network(usual) == 50


@pytest.mark.slow
def test_a_rack_stays_a_rack_whatever_its_trays_hold() -> None:
    assert [link.num_devices for link in cluster(gpu="GB200", gpus_per_node="8").links] == [72, 576]


@pytest.mark.parametrize(
    ("cells", "gigabytes"),
    [
        ({"network_gbits_per_node": "4 x 100"}, 6.25),
        ({"network_gbits_per_node": "3200"}, 50),
        ({"network_gbits_per_node": "400", "cluster": "selene"}, 6.25),
        ({"notes": "2 x 400Gbps per node"}, 25),
    ],
)
def test_the_network_of_a_node_is_read_where_the_row_says_it(cells: dict[str, str], gigabytes: float) -> None:
    assert network(cluster(gpu="A100-80GB-SXM", **cells)) == gigabytes


def test_a_stated_network_is_that_of_the_cluster_file_that_it_describes() -> None:
    remarked = cluster(gpu="A100-80GB-SXM", network_gbits_per_node="4 x 200")
    assert remarked.links[0] == cluster(cluster="vtrain-a100").links[0]
    assert network(remarked) == network(cluster(cluster="vtrain-a100"))


def test_a_senseless_number_of_devices_per_node_is_refused() -> None:
    with refused(ConfigError, "gpus_per_node"):
        cluster(gpu="H100", gpus_per_node="0")


@pytest.mark.parametrize("gpu", ["h100-96gb-500w", "H100-96GB-HBM2e-500W", "h100-96gb-hbm2e-500w"])
def test_a_device_is_known_by_the_name_of_its_file_and_by_the_name_that_reports_print(gpu: str) -> None:
    assert cluster_of({"gpu": gpu, "num_gpus": "8"}).device.name == "H100-96GB-HBM2e-500W"


def test_a_name_that_is_cut_short_is_told_what_it_may_mean() -> None:
    with refused(ConfigError, "gpu"):
        cluster_of({"gpu": "MI250X", "num_gpus": "8"})
