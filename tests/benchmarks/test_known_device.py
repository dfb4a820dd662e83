"""A GPU is found in the cluster files by what torch says of it, and not taken for another one of its name."""

from __future__ import annotations

import pytest

from benchmarks.gpu_check.probe import TorchDevice, cluster_of
from conf.units import GIBIBYTE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gibibytes", "num_multiprocessors", "cluster"),
    [
        ("NVIDIA H200", 139.8, 132, "dgx-h200"),
        ("NVIDIA H100 80GB HBM3", 79.1, 132, "dgx-h100"),
        ("NVIDIA H100 PCIe", 79.1, 114, None),
        ("NVIDIA H100 NVL", 93.1, 132, None),
        ("NVIDIA GH200 480GB", 94.5, 132, "jupiter"),
        ("NVIDIA A100-SXM4-40GB", 39.4, 108, "mosaicml-a100-40gb"),
        ("Tesla V100-SXM2-16GB", 15.8, 80, "dgx1-v100"),
        ("Tesla V100-SXM3-32GB", 31.7, 80, "dgx2-v100"),
        ("AMD Instinct MI250X", 64.0, 110, "frontier"),
        ("NVIDIA B200", 178.0, 148, "dgx-b200"),
        ("NVIDIA B200 PCIe", 90.0, 148, None),
    ],
)
def test_the_cluster_of_a_gpu_is_known_by_name_memory_and_multiprocessors(
    name: str, gibibytes: float, num_multiprocessors: int, cluster: str | None
) -> None:
    memory_bytes = int(gibibytes * GIBIBYTE)
    found = TorchDevice(name=name, memory_bytes=memory_bytes, num_multiprocessors=num_multiprocessors, capability="9.0")
    assert cluster_of(found) == cluster
