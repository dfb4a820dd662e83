"""Collectives and transfers on one link tier: all groups of a size at once, as the groups of a training job are.

Pieces of work, those of `device` too, are timed on all ranks at the same moment, often enough to trust it.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist

from conf.units import FLOAT32_BYTES
from rates.link_fit import fit_link
from rates.plan import MESSAGE_BYTES, groups_of
from rates.record import PATTERNS, LinkPlan, LinkTime, MeasuredSpread, Pattern
from train_core.parallel.collectives import Axis, all_gather, all_reduce, reduce_scatter
from train_core.parallel.groups import maximum, total
from train_core.process.world import World, choose_device, join, leave, require_seat
from train_core.training.meter import synchronize

NUM_WARM_UPS = 2
"""The first run loads kernels and joins ranks, and the time of the second says how many runs make a sample."""

MOST_RUNS = 10_000
Run: TypeAlias = Callable[[], object]


@dataclass(frozen=True)
class Stopwatch:
    """Every rank has one, and times the same pieces of work in the same order.

    Attributes:
        axis: all ranks of the job.
        num_samples: how often a quantity is measured, for about `sample_seconds` each.
    """

    world: World
    axis: Axis
    num_samples: int
    sample_seconds: float

    def slowest_seconds(self, runs: Sequence[Run]) -> list[MeasuredSpread]:
        """Seconds of one run of each of `runs`, on the rank that takes longest."""
        # The slowest rank counts, for a job waits for it in every step.
        own = self._samples(runs)
        return [MeasuredSpread.of(maximum(samples, self.axis, self.world.device)) for samples in own]

    def mean_rates(self, works: Sequence[tuple[float, Run]]) -> list[MeasuredSpread]:
        """Units of work that a rank does per second, as the mean over all ranks.

        Args:
            works: how many units a run does, and the run.
        """
        own = self._samples([run for _, run in works])
        rates = [[work / seconds for seconds in samples] for (work, _), samples in zip(works, own, strict=True)]
        sums = (total(samples, self.axis, self.world.device) for samples in rates)
        return [MeasuredSpread.of([rate / self.axis.size for rate in samples]) for samples in sums]

    def _samples(self, runs: Sequence[Run]) -> list[list[float]]:
        """This rank's seconds per run. Every round times all of `runs`, so that a disturbance meets them alike."""
        counts = [self._enough(run) for run in runs]
        rounds = [
            [self._seconds(run, count) for run, count in zip(runs, counts, strict=True)]
            for _ in range(self.num_samples)
        ]
        return [list(samples) for samples in zip(*rounds, strict=True)]

    def _enough(self, run: Run) -> int:
        """The number of runs in one sample; the same on all ranks."""
        for _ in range(NUM_WARM_UPS):
            once = self._seconds(run, 1)
        # Ranks that ran a collective a different number of times would wait for each other for ever.
        slowest = maximum([once], self.axis, self.world.device)[0]
        return min(MOST_RUNS, max(1, math.ceil(self.sample_seconds / slowest)))

    def _seconds(self, run: Run, num_runs: int) -> float:
        total([0.0], self.axis, self.world.device)  # so that all ranks start together
        synchronize(self.world.device)
        start = time.perf_counter()
        for _ in range(num_runs):
            run()
        synchronize(self.world.device)
        return (time.perf_counter() - start) / num_runs


def link_times(stopwatch: Stopwatch, message_bytes: Sequence[int], link: LinkPlan, group_size: int) -> list[LinkTime]:
    """Every pattern at every message size, in groups of one size. Transfers are measured in pairs only."""
    own, device = _own_group(link, group_size, stopwatch.axis), stopwatch.world.device
    asked = [
        (pattern, num_bytes)
        for pattern in PATTERNS
        for num_bytes in message_bytes
        if pattern != "transfer" or group_size == 2
    ]
    times = stopwatch.slowest_seconds([_work(pattern, num_bytes, own, device) for pattern, num_bytes in asked])
    return [
        LinkTime(link=link.name, pattern=pattern, num_ranks=group_size, num_bytes=num_bytes, seconds=seconds)
        for (pattern, num_bytes), seconds in zip(asked, times, strict=True)
    ]


def _own_group(link: LinkPlan, group_size: int, world: Axis) -> tuple[Axis, list[int]] | None:
    """This rank's group and its ranks; None for a rank that belongs to none and only waits."""
    for ranks in groups_of(link, group_size, world.size):
        if world.rank in ranks:
            # Only members make a group, so that ranks without one need not take part.
            group = dist.new_group(ranks, use_local_synchronization=True)
            return Axis(group_size, ranks.index(world.rank), group), ranks
    return None


def _work(pattern: Pattern, num_bytes: int, own: tuple[Axis, list[int]] | None, device: torch.device) -> Run:
    """The work of this rank in one run that is timed."""
    if own is None:  # such a rank still meets the others before every sample
        return lambda: None
    axis, ranks = own
    # Rounded up, so that every rank has an equal share of whole numbers.
    share = -(-num_bytes // (FLOAT32_BYTES * axis.size))
    whole, part = torch.zeros(share * axis.size, device=device), torch.zeros(share, device=device)
    # After a message between the ranks of a pair the next goes the other way, so that no buffer hides its time.
    ways = cycle((dist.send, dist.recv) if axis.rank == 0 else (dist.recv, dist.send))
    peer = ranks[1 - axis.rank] if axis.size == 2 else axis.rank
    work: dict[Pattern, Run] = {
        "all_reduce": lambda: all_reduce(whole, axis).wait(),
        "all_gather": lambda: all_gather(part, axis, into=whole).wait(),
        "reduce_scatter": lambda: reduce_scatter(whole, axis, into=part).wait(),
        "transfer": lambda: next(ways)(whole, peer, group=axis.group),
    }
    return work[pattern]


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
    seat = require_seat()
    world = join(seat, choose_device(kind, seat.local_rank, may_be_bound=seat.may_be_bound))
    stopwatch = Stopwatch(world, Axis(world.size, world.rank), NUM_SAMPLES, SAMPLE_SECONDS)
    link = LinkPlan(name="nodes", stride=1, num_members=world.size, group_sizes=(world.size,))
    times = link_times(stopwatch, MESSAGE_BYTES[kind], link, world.size)
    leave(world)
    fit = fit_link(times)
    return fit.latency_seconds, fit.bandwidth_bytes_per_second
