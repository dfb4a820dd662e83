"""An NVIDIA GPU's counter, against a library that answers as NVML does where ctypes calls it."""

from __future__ import annotations

import pynvml
import pytest

from tests.train_core.watch.nvml_library import KNOWN, WITHOUT_ENERGY, FakeLibrary
from train_core.watch.energy.nvml import nvml_counter


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    return FakeLibrary.installed(monkeypatch)


def test_a_gpu_is_found_by_the_uuid_that_cuda_gives_it(library: FakeLibrary) -> None:
    """CUDA's UUID lacks the prefix that NVML's has."""
    counter = nvml_counter(KNOWN.decode().removeprefix("GPU-"))
    assert counter is not None
    assert (counter.read(), counter.name, counter.counts) == (5000.0, KNOWN.decode(), "device")
    library.millijoules += 1500
    assert counter.read() == 5001.5


def test_a_gpu_that_counts_no_energy_has_no_counter(library: FakeLibrary) -> None:
    assert nvml_counter(WITHOUT_ENERGY.decode()) is None
    assert nvml_counter("99999999-aaaa-bbbb-cccc-dddddddddddd") is None


def test_a_machine_without_the_driver_has_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", _no_library)
    assert nvml_counter(KNOWN.decode()) is None


def _no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")
