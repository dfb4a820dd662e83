"""Counters of energy, and how one is followed: of NVIDIA GPUs, of GCDs of AMD cards, of processors.

NVIDIA: the driver counts since it was loaded (Volta and later).

AMD: a card of two GCDs (MI250, MI250X) has one counter, which AMD SMI shows at the first of them, while the second
shows zero. Each GCD gets an equal part of its card's energy. Source: github.com/ml-energy/zeus, pull request 203.

RAPL, of processors. Source: the Linux kernel's documentation, power/powercap: `energy_uj` counts microjoules up to
`max_energy_range_uj`. Since 2020 kernels let only root read them (CVE-2020-8694), unless the site has changed that.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from conf.units import MICRO, MILLI

CountedPart = Literal["device", "host"]
Reader = Callable[[], float | None]


@dataclass(frozen=True)
class EnergyCounter:
    """A counter that only grows, but for starting again.

    Attributes:
        name: what it counts, unique on its machine; ranks that read the same counter name it alike.
        kind: what it is called in reports.
        counts: whether it counts what a job is charged for (its devices), or the machine around them.
        read: joules since some instant; None where the counter does not answer.
        wraps_at: joules after which it starts again from zero; None where it never does.
        share: the part of its energy that belongs to the rank, where it counts for several devices.
    """

    name: str
    kind: str
    counts: CountedPart
    read: Reader
    wraps_at: float | None = None
    share: float = 1.0


class FollowedCounter:
    """The joules that a counter has counted since it was first read.

    Attributes:
        joules: the rank's share of them; None once the counter did not answer.
    """

    def __init__(self, counter: EnergyCounter) -> None:
        self.counter = counter
        self._last = counter.read()
        self.joules = None if self._last is None else 0.0

    def follow(self) -> None:
        """Add what was counted since the last reading, which is to be less long ago than the counter takes to wrap."""
        now = self.counter.read()
        if now is None or self._last is None or self.joules is None:
            self.joules = None
            return
        counted = now - self._last
        if counted < 0:  # it has started again
            counted += self.counter.wraps_at or 0.0
        self.joules += max(0.0, counted) * self.counter.share
        self._last = now


def nvml_counter(uuid: str) -> EnergyCounter | None:
    """The counter of the GPU with this UUID, as CUDA names it; None where the driver counts no energy for it.

    The UUID finds the GPU whatever CUDA_VISIBLE_DEVICES hides. A slice of a GPU (MIG) has no counter of its own.
    """
    import pynvml  # here, because only ranks with an NVIDIA GPU need it

    def read() -> float | None:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) * MILLI)
        except pynvml.NVMLError:
            return None

    try:
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByUUID(_nvml_name(uuid))
    except pynvml.NVMLError:
        return None
    return None if read() is None else EnergyCounter(_nvml_name(uuid), "NVML", "device", read)


def _nvml_name(uuid: str) -> str:
    return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"


def amd_counter(pci_address: str) -> EnergyCounter | None:
    """The counter of the GCD at this address on the PCI bus, such as `0000:c1:00.0`; None where there is none."""
    try:
        amdsmi = importlib.import_module("amdsmi")  # comes with ROCm, and not from a package index
    except (ImportError, OSError, KeyError):  # it looks for its library when it is imported
        return None
    try:
        amdsmi.amdsmi_init()
        every = amdsmi.amdsmi_get_processor_handles()
        handles = {str(amdsmi.amdsmi_get_gpu_device_bdf(handle)).lower(): handle for handle in every}
    except amdsmi.AmdSmiException:
        return None
    counting = {address for address, handle in handles.items() if _amd_joules(amdsmi, handle)}
    card = _card_of(pci_address.lower(), counting, sorted(handles))
    if not card:
        return None
    read = partial(_amd_joules, amdsmi, handles[card[0]])
    return EnergyCounter(pci_address.lower(), "AMD SMI", "device", read, share=1 / len(card))


def _card_of(address: str, counting: Collection[str], every: Sequence[str]) -> list[str]:
    """The GCDs of a card, first the one that counts: those without a counter belong to the one before them."""
    cards: list[list[str]] = []
    for each in every:
        if each in counting:
            cards.append([each])
        elif cards:
            cards[-1].append(each)
    return next((card for card in cards if address in card), [])


def _amd_joules(amdsmi: Any, handle: Any) -> float | None:
    try:
        told = amdsmi.amdsmi_get_energy_count(handle)
        # The accumulator was called `power` before ROCm 6.2.1; the resolution is in microjoules.
        ticks = told["energy_accumulator"] if "energy_accumulator" in told else told["power"]
        return float(ticks) * float(told["counter_resolution"]) * MICRO
    except (amdsmi.AmdSmiException, ValueError):  # a GCD without a counter may also show the text N/A
        return None


POWERCAP = Path("/sys/class/powercap")


def rapl_counters(counts: CountedPart, root: Path = POWERCAP) -> list[EnergyCounter]:
    """A counter for every socket, and one for the memory of each; empty where they cannot be read.

    A socket holds its cores, and the whole platform holds its sockets, so that neither of those is counted as well.
    """
    found = []
    for zone, name in _zones(root):
        if not name.startswith(("package", "dram")):
            continue
        read, wraps_at = partial(_rapl_joules, zone / "energy_uj"), _rapl_joules(zone / "max_energy_range_uj")
        if read() is None or wraps_at is None:
            return []
        found.append(EnergyCounter(f"{zone.name} {name}", "RAPL", counts, read, wraps_at))
    return found


def _zones(root: Path) -> Iterator[tuple[Path, str]]:
    """Every zone with its name: a socket is `intel-rapl:0`, a part of it `intel-rapl:0:0`, also on AMD's processors."""
    # The folder is flat, and the same zones are shown by memory-mapped registers as `intel-rapl-mmio:0` once more.
    for zone in sorted(root.glob("intel-rapl:*")):
        try:
            yield zone, (zone / "name").read_text().strip()
        except OSError:
            continue


def _rapl_joules(path: Path) -> float | None:
    try:
        return int(path.read_text()) * MICRO
    except (OSError, ValueError):  # no permission, or not there
        return None
