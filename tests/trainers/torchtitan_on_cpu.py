"""torchtitan 0.2.2 on CPU ranks: what it asks of `torch.cuda`, `torch.cpu` answers. Run in its own environment."""

from __future__ import annotations

import resource
import runpy
import sys
import types
from typing import Any

import torch
import torch._utils
from torch.distributed.fsdp import FSDPModule


class Device(types.SimpleNamespace):
    """`torch.cpu`, with what only `torch.cuda` has."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def _memory_stats(*_: object) -> dict[str, int]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"active_bytes.all.peak": peak, "reserved_bytes.all.peak": peak}


DEVICE = Device(
    get_device_name=lambda *_: "CPU",
    get_device_properties=lambda *_: types.SimpleNamespace(total_memory=24 << 30),
    reset_peak_memory_stats=lambda *_: None,
    empty_cache=lambda: None,
    memory_stats=_memory_stats,
    set_device=lambda *_: None,
    current_device=lambda: 0,
)
divide = FSDPModule.set_gradient_divide_factor


def _divide_and_sum(module: FSDPModule, factor: float) -> None:
    divide(module, factor)
    # gloo has no sum that multiplies first.
    module.set_force_sum_reduction_for_comms(True)


if __name__ == "__main__":
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda name: DEVICE  # type: ignore[assignment]
    FSDPModule.set_gradient_divide_factor = _divide_and_sum  # type: ignore[assignment, method-assign]
    sys.argv[0] = "torchtitan.train"
    runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)
