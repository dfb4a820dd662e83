"""A rank's look at its node before the training: a product, the memory, the clock and an all-reduce, within seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
import torch.distributed as dist

from rates.record import RankFacts
from train_core.process.world import World, choose_device, join, leave, require_seat

PORT_OFFSET = 65
"""Added to the port at which the training will meet: a rank that is early must not take the check for the training.
Neighbouring jobs are 1 apart and neighbouring elements of an array 131."""

SIZE = {"cpu": 256, "gpu": 8192}
"""Rows and columns of the matrices. A power of two, which every type of number holds exactly."""

MESSAGE_BYTES = {"cpu": 2**16, "gpu": 2**26}
NUM_SAMPLES = 5
Kind = Literal["cpu", "gpu"]


def facts_of_ranks(kind: Kind) -> list[RankFacts]:
    """Measure this rank's device, and return what every rank of the job has found, in rank order.

    Raises:
        UsageError: no launcher gave a seat, or this process sees no device.
    """
    seat = require_seat()
    host, _, port = seat.rendezvous.rpartition(":")
    device = choose_device(kind, seat.local_rank, may_be_bound=seat.may_be_bound)
    free, total = torch.cuda.mem_get_info(device) if kind == "gpu" else (0, 0)
    # The device is looked at before the others are met, so that a node that cannot compute says so by itself.
    rate, is_exact, clock = _product(device, SIZE[kind])
    world = join(replace(seat, rendezvous=f"{host}:{int(port) + PORT_OFFSET}"), device)
    bus, sum_is_exact = _all_reduce(world, MESSAGE_BYTES[kind])
    facts = RankFacts(
        rank=world.rank,
        node=world.nodes[world.rank],
        free_bytes=free,
        total_bytes=total,
        product_flops_per_second=rate,
        clock_hertz=clock,
        bus_bytes_per_second=bus,
        product_is_right=is_exact,
        sum_is_right=sum_is_exact,
    )
    found: list[RankFacts] = [facts] * world.size
    if world.size > 1:
        dist.all_gather_object(found, facts)
    leave(world)
    return found


def _product(device: torch.device, size: int) -> tuple[float, bool, float | None]:
    """The rate of one product, whether its values are right, and the clock that the device then has."""
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    ones = torch.ones((size, size), dtype=dtype, device=device)
    out = torch.mm(ones, ones)
    seconds = _fastest(lambda: torch.mm(ones, ones, out=out), device)
    clock = None
    if device.type == "cuda":
        # Measured while the device still works, since an idle one lowers its clock.
        torch.mm(ones, ones, out=out)
        with contextlib.suppress(Exception):  # the tool that tells of it is not part of torch
            clock = 1e6 * torch.cuda.clock_rate(device)
    return 2 * size**3 / seconds, bool((out == size).all()), clock


def _all_reduce(world: World, num_bytes: int) -> tuple[float | None, bool]:
    """The bytes per second that pass each rank in an all-reduce over all, and whether the sum is right."""
    if world.size == 1:
        return None, True
    tensor = torch.ones(num_bytes // 4, device=world.device)
    dist.all_reduce(tensor)
    is_right = bool((tensor == world.size).all())
    # The maximum stays what it is, however often it is taken.
    seconds = _fastest(lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX), world.device)
    return 2 * (world.size - 1) / world.size * num_bytes / seconds, is_right


def _fastest(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of a few runs: what else happens on a node only makes them slower."""
    best = float("inf")
    for _ in range(NUM_SAMPLES):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return best
