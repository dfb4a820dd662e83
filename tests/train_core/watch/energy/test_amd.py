"""GCDs of AMD cards. The module `amdsmi` comes with ROCm alone, so that one which answers alike stands in for it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from train_core.watch.energy.amd import amd_counter

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
