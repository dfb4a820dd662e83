"""Counters of sockets, of NVIDIA GPUs and of GCDs of AMD cards.

A folder like the kernel's stands in for the sockets, for NVML a library that answers as it does where ctypes calls it,
and for the module `amdsmi`, which comes with ROCm alone, one that answers alike.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pynvml
import pytest

from tests.train_core.watch.hosts import RANGE_JOULES, two_sockets
from tests.train_core.watch.nvml_library import KNOWN, WITHOUT_ENERGY, FakeLibrary
from train_core.watch.energy_counters import FollowedCounter, amd_counter, nvml_counter, rapl_counters


def test_sockets_and_their_memory_are_counted_and_nothing_twice(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    counters = rapl_counters("device", tmp_path)
    assert [counter.name.split()[1] for counter in counters] == ["package-0", "dram", "package-1", "dram"]
    assert [counter.read() for counter in counters] == [1000.0, 100.0, 2000.0, 300.0]
    assert len({counter.name for counter in counters}) == len(counters)


def test_a_counter_that_starts_again_goes_on_counting(tmp_path: Path) -> None:
    host = two_sockets(tmp_path)
    host.set("intel-rapl:0", RANGE_JOULES - 10)
    followed = FollowedCounter(rapl_counters("device", tmp_path)[0])
    host.set("intel-rapl:0", RANGE_JOULES - 4)
    followed.follow()
    host.set("intel-rapl:0", 3)
    followed.follow()
    assert followed.joules == pytest.approx(6 + 7)


def test_a_host_whose_counters_only_root_may_read_has_none(tmp_path: Path) -> None:
    """As root may read everything, the file is one that nobody can read: a folder."""
    two_sockets(tmp_path)
    energy = tmp_path / "intel-rapl:1" / "energy_uj"
    energy.unlink()
    energy.mkdir()
    assert rapl_counters("device", tmp_path) == []


def test_a_host_without_counters_has_none(tmp_path: Path) -> None:
    assert rapl_counters("host", tmp_path / "absent") == []


def test_a_counter_that_stops_answering_is_lost_rather_than_half_counted(tmp_path: Path) -> None:
    host = two_sockets(tmp_path)
    followed = FollowedCounter(rapl_counters("device", tmp_path)[0])
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("")
    followed.follow()
    host.set("intel-rapl:0", 2000.0)
    followed.follow()
    assert followed.joules is None


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    return FakeLibrary.installed(monkeypatch)


def test_a_gpu_is_found_by_the_uuid_that_cuda_gives_it(library: FakeLibrary) -> None:
    """CUDA's UUID lacks the prefix that NVML's has."""
    counter = nvml_counter(KNOWN.decode().removeprefix("GPU-"))
    assert counter is not None
    assert (counter.read(), counter.name, counter.counts) == (5000.0, KNOWN.decode(), "device")
    library.millijoules += 1500
    assert counter.read() == 5001.5


def test_a_gpu_that_counts_no_energy_has_no_counter(library: FakeLibrary) -> None:
    assert nvml_counter(WITHOUT_ENERGY.decode()) is None
    assert nvml_counter("99999999-aaaa-bbbb-cccc-dddddddddddd") is None


def test_a_machine_without_the_driver_has_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", _no_library)
    assert nvml_counter(KNOWN.decode()) is None


def _no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


# What a node with two MI250X shows: the first GCD of each card counts for the card, the second shows zero.
TICKS: dict[str, object] = {
    "0000:c1:00.0": 1_000_000,
    "0000:c6:00.0": 0,
    "0000:c9:00.0": 2_000_000,
    "0000:ce:00.0": "N/A",
}


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    counted = dict(TICKS)
    module = ModuleType("amdsmi")
    answers = {
        "AmdSmiException": type("AmdSmiException", (Exception,), {}),
        "amdsmi_init": lambda: None,
        "amdsmi_get_processor_handles": lambda: list(counted),
        "amdsmi_get_gpu_device_bdf": lambda handle: handle.upper(),
        "amdsmi_get_energy_count": lambda handle: {
            "energy_accumulator": counted[handle],
            "counter_resolution": 15.3,
            "timestamp": 1,
        },
    }
    for name, answer in answers.items():
        setattr(module, name, answer)
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    return counted


def test_each_gcd_has_half_of_its_cards_energy(ticks: dict[str, object]) -> None:
    first, second = amd_counter("0000:c1:00.0"), amd_counter("0000:c6:00.0")
    assert first is not None
    assert second is not None
    assert first.read() == second.read() == pytest.approx(15.3)
    assert (first.share, second.share) == (0.5, 0.5)
    assert first.name != second.name
    ticks["0000:c1:00.0"] = 3_000_000
    assert second.read() == pytest.approx(45.9)


def test_a_gcd_belongs_to_the_card_before_it(ticks: dict[str, object]) -> None:
    last = amd_counter("0000:CE:00.0")
    assert last is not None
    assert last.read() == pytest.approx(30.6)


def test_cards_of_one_device_keep_all_of_their_energy(ticks: dict[str, object]) -> None:
    ticks.update({"0000:c6:00.0": 10, "0000:ce:00.0": 20})
    counter = amd_counter("0000:c6:00.0")
    assert counter is not None
    assert counter.share == 1.0


def test_an_unknown_address_and_a_machine_without_rocm_have_no_counter(ticks: dict[str, object]) -> None:
    assert amd_counter("0000:00:00.0") is None
    del sys.modules["amdsmi"]
    assert amd_counter("0000:c1:00.0") is None
