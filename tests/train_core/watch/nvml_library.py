"""A library that answers as NVML does where ctypes calls it."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest

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

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
        fake = cls()
        monkeypatch.setattr(pynvml, "nvmlLib", fake)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return fake

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
