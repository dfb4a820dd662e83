"""A measurement of two ranks on two nodes, within seconds: their devices, and the link between them."""

from __future__ import annotations

import os
import platform
from typing import Literal

import torch

from conf.errors import UsageError
from train_core.parallel.collectives import Axis
from train_core.process.world import choose_device, join, leave, seat_from_launcher
from train_core.rates.link_fit import fit_link
from train_core.rates.links import link_times
from train_core.rates.plan import MESSAGE_BYTES
from train_core.rates.record import LinkPlan
from train_core.rates.stopwatch import Stopwatch

NUM_SAMPLES, SAMPLE_SECONDS = 3, 0.05
Kind = Literal["gpu", "cpu"]


def device_facts(kind: Kind) -> dict[str, str | int]:
    """The devices that this process sees, under the names of the doctor's report."""
    if kind == "cpu":
        return {"device": platform.processor() or platform.machine(), "num_devices": 0, "backend": "gloo"}
    count = torch.cuda.device_count()
    properties = torch.cuda.get_device_properties(0) if count else None
    return {
        "device": properties.name if properties else "",
        "num_devices": count,
        "device_memory_bytes": properties.total_memory if properties else 0,
        "backend": "rccl" if torch.version.hip else "nccl",
    }


def link_between_nodes(kind: Kind) -> tuple[float, float]:
    """Latency in seconds and bandwidth in bytes per second, as a calibration would fit them.

    Only one device of each node communicates, so that it may reach more than when all do.

    Raises:
        UsageError: no launcher gave a seat, or this process sees no device.
    """
    seat = seat_from_launcher(os.environ)
    if seat is None:
        raise UsageError("neither srun nor torchrun started this process", "Start it with one of them.")
    world = join(seat, choose_device(kind, seat.local_rank, may_be_bound=seat.may_be_bound))
    stopwatch = Stopwatch(world, Axis(world.size, world.rank), NUM_SAMPLES, SAMPLE_SECONDS)
    link = LinkPlan(name="nodes", stride=1, num_members=world.size, group_sizes=(world.size,))
    times = link_times(stopwatch, MESSAGE_BYTES[kind], link, world.size)
    leave(world)
    fit = fit_link(times)
    return fit.latency_seconds, fit.bandwidth_bytes_per_second
