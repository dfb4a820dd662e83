"""A host's folder of energy counters, as Linux shows it."""

from __future__ import annotations

from pathlib import Path

RANGE_JOULES = 262_143.0
"""Where counters of this host start again."""


class Host:
    """Zones below a folder, whose counters the test moves."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, zone: str, name: str, joules: float = 0.0) -> None:
        folder = self.root / zone
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text(f"{int(RANGE_JOULES * 1e6)}\n")
        self.set(zone, joules)

    def set(self, zone: str, joules: float) -> None:
        (self.root / zone / "energy_uj").write_text(f"{int(joules * 1e6)}\n")


def two_sockets(root: Path) -> Host:
    """Two sockets with their memory, and zones that hold the same energy once more: cores and the whole platform."""
    host = Host(root)
    host.add("intel-rapl:0", "package-0", 1000.0)
    host.add("intel-rapl:0:0", "core", 600.0)
    host.add("intel-rapl:0:1", "dram", 100.0)
    host.add("intel-rapl:1", "package-1", 2000.0)
    host.add("intel-rapl:1:0", "dram", 300.0)
    host.add("intel-rapl:2", "psys", 5000.0)
    host.add("intel-rapl-mmio:0", "package-0", 1000.0)
    return host
