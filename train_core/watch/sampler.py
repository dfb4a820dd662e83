"""The readings of each rank beside its steps, and the sums over all ranks.

Every rank reads its own device and its own process, so that nothing of another job on the same machine is counted. It
does so between two steps, outside of what is timed, and the figures travel with the times of the step.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from train_core.parallel.collectives import Axis
from train_core.parallel.groups import gather_objects
from train_core.process.machine import machine_id
from train_core.process.world import World
from train_core.trial.measurement import SystemUse
from train_core.watch.energy_counters import Reader, amd_gpus, nvml_reader
from train_core.watch.energy_meter import EnergyMeter, pci_address

SAMPLE_SECONDS = 2.0
"""Steps that are shorter than this are sampled together."""

UNKNOWN = math.nan
NOT_DUE = [UNKNOWN] * 5


class SystemSampler:
    """Reads what one rank uses, every few seconds and at the last step. All ranks agree when."""

    def __init__(self, world: World, axis: Axis, num_steps: int) -> None:
        self.device, self.num_steps = world.device, num_steps
        machines = gather_objects(machine_id(), axis)
        # On a CPU the ranks of a machine read the same counters of energy, which are to count once.
        self.counts_energy = world.device.type != "cpu" or machines.index(machines[axis.rank]) == axis.rank
        self.busy_percent = busy_percent_of(world.device)
        self._seconds_of_steps = 0.0
        self._joules, self._energy_seconds = 0.0, 0.0
        self._clock, self._cpu_seconds = time.perf_counter(), time.process_time()

    def read(self, step: int, energy: EnergyMeter) -> list[float]:
        """The use of this rank, as numbers to gather, NaN for what is not known; all NaN where no sample is due."""
        if self._seconds_of_steps < SAMPLE_SECONDS and step < self.num_steps:
            return NOT_DUE
        self._seconds_of_steps = 0.0
        percent = self.busy_percent() if self.busy_percent else None
        known = (percent, self._device_memory_bytes(), self._watts(energy), self._cores(), resident_bytes())
        return [UNKNOWN if value is None else float(value) for value in known]

    def combine(self, of_ranks: Sequence[Sequence[float]], step_seconds: float) -> SystemUse | None:
        """The use of all ranks together; None where no sample was due.

        Args:
            of_ranks: what every rank read.
            step_seconds: the time on which all ranks have agreed, and so when the next sample is due.
        """
        self._seconds_of_steps += step_seconds
        busy, memory, watts, cores, resident = ([rank[place] for rank in of_ranks] for place in range(len(NOT_DUE)))
        if _if_reported(sum(cores)) is None:
            return None
        fullest, resident_bytes = _if_reported(max(memory, key=_nan_first)), _if_reported(max(resident, key=_nan_first))
        return SystemUse(
            device_busy_percent=_if_reported(sum(busy) / len(busy)),
            device_memory_bytes=None if fullest is None else int(fullest),
            device_watts=_if_reported(sum(watts)),
            cpu_cores=sum(cores),
            resident_bytes=None if resident_bytes is None else int(resident_bytes),
        )

    def _device_memory_bytes(self) -> int | None:
        """The bytes in use on the device, by whatever uses it; None of a CPU."""
        if self.device.type == "cpu":
            return None
        free, whole = torch.cuda.mem_get_info(self.device)
        return whole - free

    def _watts(self, energy: EnergyMeter) -> float | None:
        """The mean power of this rank's device since the last sample; 0 where another rank counts it."""
        joules, seconds = energy.device_joules(), energy.seconds
        if joules is None or seconds <= self._energy_seconds:
            return None
        watts = (joules - self._joules) / (seconds - self._energy_seconds)
        self._joules, self._energy_seconds = joules, seconds
        return watts if self.counts_energy else 0.0

    def _cores(self) -> float:
        """The number of cores that this process kept busy since the last sample."""
        clock, cpu_seconds = time.perf_counter(), time.process_time()
        cores = (cpu_seconds - self._cpu_seconds) / max(clock - self._clock, 1e-9)
        self._clock, self._cpu_seconds = clock, cpu_seconds
        return cores


def resident_bytes() -> int | None:
    """The memory of the host that this process holds now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):  # not Linux
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _if_reported(value: float) -> float | None:
    return None if math.isnan(value) else value


def _nan_first(value: float) -> float:
    """A key for `max`, by which one rank without a figure leaves the maximum without one."""
    return math.inf if math.isnan(value) else value


def busy_percent_of(device: torch.device) -> Reader | None:
    """The reader of the device's use; None where there is none, as on a CPU, which other programs use too."""
    if device.type == "cpu":
        return None
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is None:
        return nvml_busy_percent(str(getattr(properties, "uuid", "")))
    return amd_busy_percent(pci_address(properties) or "")


def nvml_busy_percent(uuid: str) -> Reader | None:
    """The reader for the NVIDIA GPU with this UUID, whatever CUDA_VISIBLE_DEVICES hides; a slice (MIG) has none."""
    return nvml_reader(uuid, lambda pynvml, gpu: float(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu))


def amd_busy_percent(pci_address: str) -> Reader | None:
    """The reader for the GCD at this address on the PCI bus."""
    amdsmi, gpus = amd_gpus()
    handle = gpus.get(pci_address.lower())
    return None if handle is None else partial(_amd_percent, amdsmi, handle)


def _amd_percent(amdsmi: Any, handle: Any) -> float | None:
    try:
        return float(amdsmi.amdsmi_get_gpu_activity(handle)["gfx_activity"])
    except (amdsmi.AmdSmiException, ValueError):  # it may also show the text N/A
        return None
