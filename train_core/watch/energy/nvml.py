"""The energy of an NVIDIA GPU, which its driver counts since it was loaded (Volta and later)."""

from __future__ import annotations

from functools import partial
from typing import Any

from train_core.watch.energy.counter import EnergyCounter

MILLI = 1e-3


def nvml_counter(uuid: str) -> EnergyCounter | None:
    """The counter of the GPU with this UUID, as CUDA names it; None where the driver counts no energy for it.

    The UUID finds the GPU whatever CUDA_VISIBLE_DEVICES hides. A slice of a GPU (MIG) has no counter of its own.
    """
    # The import is here because only ranks with an NVIDIA GPU need it.
    import pynvml

    name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    try:
        pynvml.nvmlInit()
        read = partial(_joules, pynvml, pynvml.nvmlDeviceGetHandleByUUID(name))
    except pynvml.NVMLError:
        return None
    return None if read() is None else EnergyCounter(name, "NVML", "device", read)


def _joules(pynvml: Any, handle: Any) -> float | None:
    try:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) * MILLI
    except pynvml.NVMLError:
        return None
