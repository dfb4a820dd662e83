"""An NVIDIA GPU's counter, against a library that answers as NVML does where ctypes calls it."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest

from train_core.watch.energy.nvml import nvml_counter

KNOWN, WITHOUT_ENERGY = b"GPU-11111111-2222-3333-4444-555555555555", b"GPU-66666666-7777-8888-9999-000000000000"


class FakeLibrary:
    """What pynvml finds in libnvidia-ml.so.1: C functions that fill in what their pointers point to."""

    def __init__(self) -> None:
        self.millijoules = 5_000_000
        self.handles = {KNOWN: 1, WITHOUT_ENERGY: 2}
        by_uuid = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(pynvml.c_nvmlDevice_t))
        energy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))
        self.nvmlInitWithFlags = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint)(lambda flags: 0)
        self.nvmlDeviceGetHandleByUUID = by_uuid(self._handle)
        self.nvmlDeviceGetTotalEnergyConsumption = energy(self._energy)

    def _handle(self, uuid: bytes, handle: Any) -> int:
        if uuid not in self.handles:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        handle[0] = ctypes.cast(self.handles[uuid], pynvml.c_nvmlDevice_t)
        return 0

    def _energy(self, handle: int, millijoules: Any) -> int:
        if handle != self.handles[KNOWN]:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        millijoules[0] = self.millijoules
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary()
    monkeypatch.setattr(pynvml, "nvmlLib", fake)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return fake


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
