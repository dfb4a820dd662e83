"""One rank of a calibration: measures what the plan says together with the others; rank 0 writes `rates.json`.

`python -m train_core.rates.device FOLDER --rank R --size N --meeting PATH` is one of N processes of this machine.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections import defaultdict
from pathlib import Path

from conf.errors import UsageError
from conf.units import count_of
from train_core.job.failures import ended_by_failure
from train_core.job.rank import environment
from train_core.parallel.collectives import Axis, gather_objects
from train_core.process.world import (
    Seat,
    World,
    choose_device,
    file_rendezvous,
    join,
    leave,
    require_seat,
    usable_cores,
)
from train_core.rates.kernels import attention_rates, kernel_seconds, memory_rates, product_rates
from train_core.rates.links import link_times
from train_core.rates.record import DeviceRates, LinkTime, RatesFolder, RatesPlan
from train_core.rates.stopwatch import Stopwatch


def run_rank(folder: RatesFolder, seat: Seat, device_index: int) -> None:
    """Join, measure, leave. A rank that fails leaves `failures/rank-N.json` and ends the process."""
    with ended_by_failure(folder, seat.rank):
        plan = folder.read_plan()
        if seat.size != plan.world_size:
            problem = f"{count_of(seat.size, 'rank', 'was', 'were')} started, and the plan has {plan.world_size}"
            raise UsageError(problem, "Start as many tasks as the plan has ranks.")
        world = join(seat, choose_device(plan.kind, device_index, may_be_bound=seat.may_be_bound))
        rates = _measure(folder, plan, world)
        leave(world)
        if seat.rank == 0:
            folder.write_rates(rates)


def run_from_launcher(folder: Path) -> None:
    """Be the rank that srun's environment says.

    Raises:
        UsageError: no launcher gave a seat.
    """
    seat = require_seat()
    run_rank(RatesFolder(folder), seat, seat.local_rank)


def _measure(folder: RatesFolder, plan: RatesPlan, world: World) -> DeviceRates:
    axis = Axis(world.size, world.rank)  # without a line: no clock has to know what is waited for
    stopwatch = Stopwatch(world, axis, plan.num_samples, plan.sample_seconds)
    links = [(link, size) for link in plan.links for size in link.group_sizes]
    num_parts, begun = 4 + len(links), 0

    def begin(what: str) -> None:
        nonlocal begun
        begun += 1
        if world.rank == 0:
            folder.tell(f"{begun} of {num_parts}: {what}")

    begin("memory")
    copied, triad = memory_rates(stopwatch, plan)
    begin("small kernels")
    small = kernel_seconds(stopwatch, plan)
    begin("matrix products")
    products = product_rates(stopwatch, plan)
    begin("attention")
    attentions = attention_rates(stopwatch, plan)
    times: list[LinkTime] = []
    for link, size in links:
        begin(f"link {link.name}, groups of {size}")
        times += link_times(stopwatch, plan.message_bytes, link, size)
    cores = _cores_of_hosts(axis)
    return DeviceRates(
        plan=plan,
        products=tuple(products),
        attentions=tuple(attentions),
        copy_bytes_per_second=copied,
        triad_bytes_per_second=triad,
        kernel_seconds=small,
        link_times=tuple(times),
        environment=environment(world),
        hostnames=tuple(sorted(cores)),
        # The host with the fewest cores sets the pace of a job, whose ranks wait for each other.
        cores_per_host=min(map(len, cores.values())),
        finished=time.time(),
    )


def _cores_of_hosts(axis: Axis) -> dict[str, set[int]]:
    """The cores that the ranks of each host may use together. A launcher that binds ranks gives each one its own."""
    cores: dict[str, set[int]] = defaultdict(set)
    for hostname, usable in gather_objects((socket.gethostname(), usable_cores()), axis):
        cores[hostname] |= usable
    return cores


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m train_core.rates.device", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--meeting", type=Path, required=True, help="a file through which the ranks find each other")
    given = parser.parse_args()
    seat = Seat(given.rank, given.size, given.rank, file_rendezvous(given.meeting.absolute()))
    run_rank(RatesFolder(given.folder), seat, given.rank)


if __name__ == "__main__":
    main()
