"""All counters of a rank, followed over the timed steps, and what they say together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conf.units import count_of
from train_core.parallel.collectives import Axis
from train_core.parallel.groups import gather_objects
from train_core.process.machine import machine_id
from train_core.watch.energy_counters import (
    CountedPart,
    EnergyCounter,
    FollowedCounter,
    amd_counter,
    nvml_counter,
    rapl_counters,
)


def counters_of(device: torch.device) -> list[EnergyCounter]:
    """Every counter that this rank can read: of its device, and of the host around it."""
    if device.type == "cpu":
        return rapl_counters("device")
    found = _gpu_counter(torch.cuda.get_device_properties(device))
    return ([found] if found else []) + rapl_counters("host")


def _gpu_counter(properties: object) -> EnergyCounter | None:
    if torch.version.hip is None:
        return nvml_counter(str(getattr(properties, "uuid", "")))
    address = pci_address(properties)
    return None if address is None else amd_counter(address)


def pci_address(properties: object) -> str | None:
    """A GPU's place on the bus, by which AMD SMI knows it; None of older versions of torch, which do not tell it."""
    domain, bus, slot = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    if domain is None or bus is None or slot is None:
        return None
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


@dataclass(frozen=True)
class PartPower:
    """The readings of one counter over the timed steps.

    Attributes:
        machine: whose counter it is; ranks of one machine may read the same one.
        idle_watts: before the first step; None where nobody waited for it.
    """

    machine: str
    name: str
    kind: str
    counts: CountedPart
    watts: float
    idle_watts: float | None


@dataclass(frozen=True)
class EnergyOfJob:
    """The readings of all counters of a job, each counted once.

    Attributes:
        seconds: between the two readings; 0 where no step was timed.
        is_whole: every rank had a counter for its device.
    """

    parts: Sequence[PartPower]
    seconds: float
    is_whole: bool

    def fields(self, step_seconds: float, tokens_per_step: int) -> dict[str, Any]:
        """The fields of a `Performance` that are known."""
        devices = [part for part in self.parts if part.counts == "device"]
        watts = sum(part.watts for part in devices)
        idle = [part.idle_watts for part in devices if part.idle_watts is not None]
        host_watts = sum(part.watts for part in self.parts if part.counts == "host")
        of_devices = {
            "energy_joules_per_step": watts * step_seconds,
            "energy_joules_per_token": watts * step_seconds / tokens_per_step,
            "energy_watts": watts,
            "energy_seconds": self.seconds,
            "energy_source": _words(devices),
            "energy_idle_watts": sum(idle) if len(idle) == len(devices) else None,
        }
        of_hosts = {"energy_host_joules_per_step": host_watts * step_seconds}
        return (of_devices if self.is_whole and watts > 0 else {}) | (of_hosts if host_watts > 0 else {})


class EnergyMeter:
    """Follows the counters of one rank. A rank that can read none follows none, and says so at the end."""

    def __init__(self, device: torch.device, counters: Sequence[EnergyCounter] | None = None) -> None:
        self.counters = counters_of(device) if counters is None else list(counters)
        self.followed: list[FollowedCounter] = []
        self.idle_watts: dict[str, float] = {}
        self.began = self.seconds = 0.0

    def measure_idle(self, seconds: float) -> None:
        """Wait so long, and note the power of devices that do nothing."""
        if not seconds or not self.counters:
            return
        self.begin()
        time.sleep(seconds)
        self.follow()
        self.idle_watts = {part.name: part.watts for part in self._parts()}
        self.followed, self.seconds = [], 0.0

    def begin(self) -> None:
        """Read all counters for the first time; nothing where that was done."""
        if not self.followed:
            self.followed, self.began = [FollowedCounter(counter) for counter in self.counters], time.perf_counter()

    def follow(self) -> None:
        """Read all counters again; nothing before they were read for the first time."""
        for followed in self.followed:
            followed.follow()
        if self.followed:
            self.seconds = time.perf_counter() - self.began

    def device_joules(self) -> float | None:
        """The joules counted since the first reading for the device; None where nothing counts them."""
        counted = [followed.joules for followed in self.followed if followed.counter.counts == "device"]
        known = [joules for joules in counted if joules is not None]
        return sum(known) if known and len(known) == len(counted) else None

    def of_all_ranks(self, axis: Axis) -> EnergyOfJob:
        """The readings of all ranks' counters; every rank calls it."""
        gathered: list[tuple[list[PartPower], float]] = gather_objects((self._parts(), self.seconds), axis)
        once = {(part.machine, part.name): part for parts, _ in gathered for part in parts}
        is_whole = all(any(part.counts == "device" for part in parts) for parts, _ in gathered)
        return EnergyOfJob(list(once.values()), max(seconds for _, seconds in gathered), is_whole)

    def _parts(self) -> list[PartPower]:
        machine, idle = machine_id(), self.idle_watts
        return [
            PartPower(machine, of.name, of.kind, of.counts, followed.joules / self.seconds, idle.get(of.name))
            for followed in self.followed
            if (of := followed.counter) and followed.joules is not None and self.seconds
        ]


def _words(parts: Sequence[PartPower]) -> str:
    kinds, machines = " and ".join(dict.fromkeys(part.kind for part in parts)), len({part.machine for part in parts})
    return f"{kinds}, {count_of(len(parts), 'counter')} on {count_of(machines, 'machine')}"
