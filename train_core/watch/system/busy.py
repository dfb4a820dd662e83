"""The use of this rank's GPU: the share of a moment, up to a second long, in which any kernel ran on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from train_core.watch.energy.amd import amd_gpus
from train_core.watch.energy.meter import pci_address
from train_core.watch.energy.nvml import nvml_handle

Percent = Callable[[], float | None]


def busy_percent_of(device: torch.device) -> Percent | None:
    """The reader of the device's use; None where there is none, as on a CPU, which other programs use too."""
    if device.type == "cpu":
        return None
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is None:
        return nvml_busy_percent(str(getattr(properties, "uuid", "")))
    return amd_busy_percent(pci_address(properties) or "")


def nvml_busy_percent(uuid: str) -> Percent | None:
    """Of the NVIDIA GPU with this UUID, whatever CUDA_VISIBLE_DEVICES hides. A slice of a GPU (MIG) has no figure."""
    found = nvml_handle(uuid)
    return None if found is None else partial(_nvml_percent, *found)


def amd_busy_percent(pci_address: str) -> Percent | None:
    """Of the GCD at this address on the PCI bus."""
    amdsmi, gpus = amd_gpus()
    handle = gpus.get(pci_address.lower())
    return None if handle is None else partial(_amd_percent, amdsmi, handle)


def _nvml_percent(pynvml: Any, handle: Any) -> float | None:
    try:
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError:
        return None


def _amd_percent(amdsmi: Any, handle: Any) -> float | None:
    try:
        return float(amdsmi.amdsmi_get_gpu_activity(handle)["gfx_activity"])
    except (amdsmi.AmdSmiException, ValueError):  # it may also show the text N/A
        return None
