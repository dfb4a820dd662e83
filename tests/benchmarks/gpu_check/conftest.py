"""A machine with H200s that is not here, and a workbench on CPU ranks that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.gpu_check.machine import CheckedMachine, node_of
from benchmarks.gpu_check.probe import TorchDevice
from benchmarks.gpu_check.scale import CPU, GPU
from benchmarks.gpu_check.workbench import CheckWorkbench
from conf.compose.load import compose_tree

H200 = TorchDevice(name="NVIDIA H200", memory_bytes=150_109_880_320, num_multiprocessors=132, capability="9.0")
MachineOf = Callable[[TorchDevice, int], CheckedMachine]
GpuBench = Callable[..., CheckWorkbench]


def machine_of(device: TorchDevice, count: int) -> CheckedMachine:
    return CheckedMachine(
        kind="gpu",
        devices=(device,) * count,
        num_ranks=count,
        versions={"torch": "2.13.0", "NCCL": "2.27.5"},
        processor="a processor, 16 usable cores",
        host_memory_bytes=2**37,
        topology="",
        variables={},
    )


@pytest.fixture
def bench_of(tmp_path: Path) -> GpuBench:
    """The workbench of a node with GPUs. Nothing is run on it."""

    def build(device: TorchDevice, count: int, num_ranks: int | None = None) -> CheckWorkbench:
        machine = machine_of(device, count).model_copy(update={"num_ranks": num_ranks or count})
        node, cpu_tree = node_of(machine), compose_tree(["cluster=local"])
        return CheckWorkbench("gpu", count, machine.num_ranks, node.tree, cpu_tree, node.narrow, GPU, tmp_path)

    return build


@pytest.fixture
def cpu_bench(tmp_path: Path) -> Iterator[CheckWorkbench]:
    """Two CPU ranks, on which jobs run."""
    tree = compose_tree(["model=tiny", "cluster=local"])
    bench = CheckWorkbench("cpu", 2, 2, tree, tree, "bf16", CPU, tmp_path)
    yield bench
    bench.end_all()
