"""Facts about devices and clusters are one file each, with their sources, and are put together by Hydra."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from conf.compose.load import load
from conf.folders import conf_dir, options
from conf.types.cluster_spec import ClusterSpec, DeviceSpec
from tests.composed import load_cluster

GPUS = [name for name in options("device") if name != "cpu"]
# What tables of published configurations call a GPU, and the cluster that is meant unless they name one.
CLUSTER_OF_GPU = {
    "A100-40GB-SXM": "mosaicml-a100-40gb",
    "A100": "selene",
    "A100-80GB-SXM": "selene",
    "A100-80GB-SXM (Jean Zay, 4x100Gb OmniPath)": "jean-zay",
    "A800-80GB-SXM": "a800",
    "A800": "a800",
    "B200-180GB": "dgx-b200",
    "B200": "dgx-b200",
    "B300-270GB": "dgx-b300",
    "B300": "dgx-b300",
    "GB200-186GB": "gb200-nvl72",
    "GB200": "gb200-nvl72",
    "GB300-279GB": "gb300-nvl72",
    "GB300": "gb300-nvl72",
    "GH200": "jupiter",
    "GH200-96GB": "jupiter",
    "H100": "dgx-h100",
    "H100-80GB-SXM": "dgx-h100",
    "H100-96GB HBM2e 500W cap": "grand-teton",
    "H20-96GB": "h20",
    "H20": "h20",
    "H200": "dgx-h200",
    "H200-141GB": "dgx-h200",
    "H800-80GB-SXM": "h800",
    "H800": "h800",
    "Intel Max 1550 tile": "aurora",
    "MI250X GCD": "frontier",
    "MI300X-192GB": "mi300x",
    "MI300X": "mi300x",
    "MI325X-256GB": "mi325x",
    "MI325X": "mi325x",
    "MI350X-288GB": "mi350x",
    "MI350X": "mi350x",
    "MI355X-288GB": "mi355x",
    "MI355X": "mi355x",
    "PVC tile": "aurora",
    "V100-16GB": "dgx1-v100",
    "V100-32GB": "dgx2-v100",
}


@cache
def device(name: str) -> DeviceSpec:
    return load([f"device={name}"]).cluster.device


def cluster(name: str) -> ClusterSpec:
    return load_cluster(name)


@pytest.mark.slow
def test_every_gpu_name_picks_one_cluster_only() -> None:
    picked = [(gpu, name) for name in options("cluster") for gpu in cluster(name).gpu_names]
    assert sorted(picked) == sorted(CLUSTER_OF_GPU.items())


@pytest.mark.parametrize("name", options("device"))
def test_every_figure_of_a_device_has_a_source(name: str) -> None:
    spec = device(name)
    assert all((spec.peak_source, spec.memory_source, spec.watts_source, spec.price_source))


def test_devices_have_names_of_their_own() -> None:
    names = [device(name).name for name in options("device")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_is_faster_in_half_precision_and_has_bf16_unless_it_is_a_v100(name: str) -> None:
    peaks = device(name).peak_flops_per_second
    assert peaks["fp16"] > peaks["fp32"]
    assert ("bf16" in peaks) == (not name.startswith("v100"))


def test_half_a_card_is_half_of_its_facts() -> None:
    gcd = device("mi250x-gcd")
    assert (gcd.peak_flops_per_second["bf16"], gcd.watts, gcd.num_multiprocessors) == (383e12 / 2, 500 / 2, 220 // 2)


def test_only_the_cpu_measures_its_peak() -> None:
    assert [name for name in options("device") if device(name).peak_source == "measured"] == ["cpu"]


@pytest.mark.parametrize("name", options("cluster"))
def test_the_widest_link_spans_the_cluster_and_one_spans_whole_nodes(name: str) -> None:
    spec = cluster(name)
    assert spec.links[-1].num_devices == spec.num_devices
    # The nodes of a rack of 72 GPUs share one switch, so that no tier ends with a node.
    assert any(link.num_devices % spec.devices_per_node == 0 for link in spec.links[:-1] or spec.links)
    assert sorted(spec.links, key=lambda link: -link.bandwidth_bytes_per_second) == list(spec.links)


def test_a_device_is_chosen_by_name_and_changed_key_by_key() -> None:
    spec = load(["cluster=selene", "device=h100-80gb", "cluster.device.watts=650"]).cluster
    assert (spec.name, spec.device.name, spec.device.watts) == ("selene", "H100-80GB-SXM", 650)


def test_a_sweep_keeps_its_cluster_and_takes_another_device() -> None:
    spec = load(["sweep=175b", "device=a100-80gb"]).cluster
    assert (spec.name, spec.device.name) == ("frontier", "A100-80GB-SXM")


def test_a_copied_cluster_file_overrides_device_keys_inline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (conf_dir() / "cluster" / "selene.yaml").read_text()
    changed = text.replace("name: selene\n", "name: mine\ndevice:\n  watts: 330\n  price_per_hour: 1.5\n")
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text(changed)
    monkeypatch.setenv("TRISWEEP_CONFIG_DIR", str(tmp_path))
    spec = load(["cluster=mine"]).cluster
    assert (spec.device.name, spec.device.watts, spec.device.price_per_hour) == ("A100-80GB-SXM", 330, 1.5)
