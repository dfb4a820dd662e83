"""The energy of a host's sockets and memory, which Linux shows as files where the site lets users read them (RAPL).

Source: the Linux kernel's documentation, power/powercap: `energy_uj` counts microjoules up to `max_energy_range_uj`.
Since 2020 kernels let only root read them (CVE-2020-8694), unless the site has changed that.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from train_core.watch.energy.counter import CountedPart, EnergyCounter

POWERCAP = Path("/sys/class/powercap")
MICRO = 1e-6


def rapl_counters(counts: CountedPart, root: Path = POWERCAP) -> list[EnergyCounter]:
    """A counter for every socket, and one for the memory of each; empty where they cannot be read.

    A socket holds its cores, and the whole platform holds its sockets, so that neither of those is counted as well.
    """
    found = []
    for zone, name in _zones(root):
        if not name.startswith(("package", "dram")):
            continue
        read, wraps_at = partial(_joules, zone / "energy_uj"), _joules(zone / "max_energy_range_uj")
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


def _joules(path: Path) -> float | None:
    try:
        return int(path.read_text()) * MICRO
    except (OSError, ValueError):  # no permission, or not there
        return None
