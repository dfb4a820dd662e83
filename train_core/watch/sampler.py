"""The readings of each rank beside its steps, and the sums over all ranks.

Every rank reads its own device and its own process, so that nothing of another job on the same machine is counted. It
does so between two steps, outside of what is timed, and the figures travel with the times of the step.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from train_core.parallel.collectives import Axis
from train_core.parallel.groups import gather_objects
from train_core.process.machine import machine_id
from train_core.process.world import World
from train_core.trial.measurement import SystemUse
from train_core.watch.energy_meter import EnergyMeter

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
        self._seconds_of_steps = 0.0
        self._joules, self._energy_seconds = 0.0, 0.0
        self._clock, self._cpu_seconds = time.perf_counter(), time.process_time()

    def read(self, step: int, energy: EnergyMeter) -> list[float]:
        """The use of this rank, as numbers to gather, NaN for what is not known; all NaN where no sample is due."""
        if self._seconds_of_steps < SAMPLE_SECONDS and step < self.num_steps:
            return NOT_DUE
        self._seconds_of_steps = 0.0
        busy, memory = busy_percent(self.device), self._device_memory_bytes()
        known = (busy, memory, self._watts(energy), self._cores(), resident_bytes())
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


def busy_percent(device: torch.device) -> float | None:
    """The share of time in which a kernel ran lately; None on a CPU, which other programs use too, and on a slice."""
    if device.type == "cuda":
        with contextlib.suppress(
            Exception
        ):  # the libraries that tell of it are no part of torch, and fail in many ways
            return float(torch.cuda.utilization(device))
    return None
