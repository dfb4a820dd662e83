"""How busy GPUs are, against libraries that answer as NVML and AMD SMI do. No real counter was read."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from tests.train_core.watch.nvml_library import KNOWN, WITHOUT_ENERGY, FakeLibrary
from train_core.watch.sampler import amd_busy_percent, busy_percent_of, nvml_busy_percent


def test_an_nvidia_gpu_tells_how_busy_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary.installed(monkeypatch)
    percent = nvml_busy_percent(KNOWN.decode().removeprefix("GPU-"))
    assert percent is not None
    assert percent() == 87.0
    library.busy_percent = 12
    assert percent() == 12.0


def test_a_slice_of_a_gpu_tells_nothing_and_an_unknown_one_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLibrary.installed(monkeypatch)
    sliced = nvml_busy_percent(WITHOUT_ENERGY.decode())
    assert sliced is not None
    assert sliced() is None
    assert nvml_busy_percent("99999999-aaaa-bbbb-cccc-dddddddddddd") is None


def test_a_gcd_tells_how_busy_it_is_where_rocm_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    activity: dict[str, object] = {"0000:c1:00.0": 63, "0000:c6:00.0": "N/A"}
    module = ModuleType("amdsmi")
    answers = {
        "AmdSmiException": type("AmdSmiException", (Exception,), {}),
        "amdsmi_init": lambda: None,
        "amdsmi_get_processor_handles": lambda: list(activity),
        "amdsmi_get_gpu_device_bdf": lambda handle: handle.upper(),
        "amdsmi_get_gpu_activity": lambda handle: {"gfx_activity": activity[handle], "umc_activity": 1},
    }
    for name, answer in answers.items():
        setattr(module, name, answer)
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    first, second = amd_busy_percent("0000:C1:00.0"), amd_busy_percent("0000:c6:00.0")
    assert first is not None
    assert second is not None
    assert (first(), second()) == (63.0, None)
    assert amd_busy_percent("") is None


def test_nothing_says_how_busy_a_cpu_is_with_this_training_alone() -> None:
    assert busy_percent_of(torch.device("cpu")) is None
