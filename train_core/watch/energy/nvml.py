"""The energy of an NVIDIA GPU, which its driver counts since it was loaded (Volta and later)."""

from __future__ import annotations

from functools import partial
from typing import Any

from conf.units import MILLI
from train_core.watch.energy.counter import EnergyCounter


def nvml_counter(uuid: str) -> EnergyCounter | None:
    """The counter of the GPU with this UUID, as CUDA names it; None where the driver counts no energy for it.

    A slice of a GPU (MIG) has no counter of its own.
    """
    found = nvml_handle(uuid)
    if found is None:
        return None
    read = partial(_joules, *found)
    return None if read() is None else EnergyCounter(_name(uuid), "NVML", "device", read)


def nvml_handle(uuid: str) -> tuple[Any, Any] | None:
    """NVML, and its handle of the GPU with this UUID; None where it has none.

    The UUID finds the GPU whatever CUDA_VISIBLE_DEVICES hides.
    """
    # The import is here because only ranks with an NVIDIA GPU need it.
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(_name(uuid))
    except pynvml.NVMLError:
        return None


def _name(uuid: str) -> str:
    return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"


def _joules(pynvml: Any, handle: Any) -> float | None:
    try:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) * MILLI
    except pynvml.NVMLError:
        return None
