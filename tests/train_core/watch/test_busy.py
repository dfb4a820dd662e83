"""How busy GPUs are, as torch tells it of the driver. No real counter was read."""

from __future__ import annotations

import pytest
import torch

from train_core.watch.sampler import busy_percent


def test_a_gpu_tells_how_busy_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "utilization", {torch.device("cuda", 1): 87}.__getitem__)
    assert busy_percent(torch.device("cuda", 1)) == 87.0


@pytest.mark.parametrize("device", ["cpu", "cuda:63"], ids=["a CPU", "a GPU of which no library tells"])
def test_of_other_devices_nothing_is_known(device: str) -> None:
    assert busy_percent(torch.device(device)) is None
