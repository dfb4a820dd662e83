"""What a node with GPUs is asked to do exists: every layout is a legal experiment, and every shape fits on paper."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest

from benchmarks.gpu_check import faults
from benchmarks.gpu_check.faults import _overfull
from benchmarks.gpu_check.layouts import LAYOUTS, CheckLayout
from benchmarks.gpu_check.one_device import WAYS
from benchmarks.gpu_check.probe import TorchDevice
from benchmarks.gpu_check.session import PARTS, rounds
from benchmarks.gpu_check.speed import GPU_SHAPES, STEP_SECONDS, Shape, chosen_layout
from conf.units import GIBIBYTE
from costs import estimate
from tests.benchmarks.gpu_check.conftest import H200, GpuBench
from train_core.process.git_sha import ROOT

UNKNOWN = TorchDevice(name="Acme X1", memory_bytes=48 * GIBIBYTE, num_multiprocessors=100, capability="gfx942")
V100 = TorchDevice(name="Tesla V100-SXM2-16GB", memory_bytes=16 * GIBIBYTE, num_multiprocessors=80, capability="7.0")


@pytest.mark.parametrize("device", [H200, UNKNOWN, V100], ids=lambda device: device.name)
def test_every_layout_exists_on_the_node(bench_of: GpuBench, device: TorchDevice) -> None:
    bench = bench_of(device, 8)
    for num_devices, layouts in LAYOUTS.items():
        for layout in layouts:
            for family in (layout.family,) if layout.family else ("GPT", "Llama"):
                assert bench.small(family, bench.narrow, layout.values()).parallel.world_size == num_devices
    for values in WAYS.values():
        assert bench.small("Llama", "fp32", values).parallel.world_size == 1


@pytest.mark.slow
def test_a_device_without_bf16_is_checked_in_fp16(bench_of: GpuBench) -> None:
    assert [bench_of(device, 1).narrow for device in (H200, V100, UNKNOWN)] == ["bf16", "fp16", "bf16"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("num_devices", [1, 8])
@pytest.mark.parametrize("shape", GPU_SHAPES, ids=lambda shape: shape.name)
def test_every_shape_fits_an_h200_node_on_paper(bench_of: GpuBench, shape: Shape, num_devices: int) -> None:
    chosen = chosen_layout(bench_of(H200, num_devices), shape)
    assert chosen is not None
    assert chosen.predicted.fits
    assert chosen.predicted.step_seconds <= STEP_SECONDS
    assert chosen.experiment.parallel.tensor_parallel_size == (num_devices if shape.tensor else 1)


def test_a_device_that_no_file_describes_is_checked_with_the_memory_that_torch_sees(bench_of: GpuBench) -> None:
    bench = bench_of(UNKNOWN, 2)
    experiment = bench.small("GPT", "fp32", {})
    assert experiment.cluster.device.name == "Acme X1"
    assert experiment.cluster.device.memory_bytes == 48 * GIBIBYTE
    assert experiment.cluster.device.peak_source == "measured"


@pytest.mark.parametrize("device", [H200, UNKNOWN, V100], ids=lambda device: device.name)
def test_the_overfull_batch_is_predicted_not_to_fit(bench_of: GpuBench, device: TorchDevice) -> None:
    experiment = _overfull(bench_of(device, 1))
    assert not estimate(experiment).fits
    assert experiment.batch.micro_batch_size <= 64


def test_more_ranks_than_gpus_share_them_each_as_a_host_of_its_own(
    bench_of: GpuBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL refuses two ranks of one host on one GPU."""
    bench, started = bench_of(H200, 2, 4), []

    def start(command: Sequence[str], env: Mapping[str, str], **_: object) -> SimpleNamespace:
        started.append((command[command.index("--devices") + 1 :], env))
        return SimpleNamespace(poll=lambda: 0)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", start)
        bench.start("shared", bench.small("GPT", "fp32", CheckLayout(data=4).values()), (0, 1, 2, 3), 1.0)
    ((devices, variables),) = started
    assert devices == ["0", "1", "0", "1"]
    with monkeypatch.context() as patch:  # one rank on each: links are measured as they are
        patch.setattr(subprocess, "Popen", start)
        bench.start("apart", bench.small("GPT", "fp32", CheckLayout(data=2).values()), (0, 1, 2, 3), 1.0)
    (*_, (devices, others)) = started
    assert devices == ["0", "1"]
    assert "NCCL_SOCKET_IFNAME" not in others
    assert variables["NCCL_SOCKET_IFNAME"] == "lo"
    tell = "import os, benchmarks.gpu_check.job; print(os.environ['NCCL_HOSTID'], f'rank-{os.getpid()}')"
    told = subprocess.check_output([sys.executable, "-c", tell], cwd=ROOT, env=variables, text=True)
    host, process = told.split()
    assert host == process
    overfull = next(check for check in faults.faults(bench) if "out of memory" in check.name)
    assert overfull.num_ranks == 4, "what shares its GPU would run out of memory too"


def test_names_of_checks_are_different_and_fit_a_line(bench_of: GpuBench) -> None:
    names = [check.name for checks in rounds(bench_of(H200, 8), PARTS) for check in checks]
    assert len(names) == len(set(names))
    assert max(map(len, names)) < 80
