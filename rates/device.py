"""One rank of a calibration: measures what the plan says together with the others; rank 0 writes `rates.json`.

`python -m rates.device FOLDER --rank R --size N --meeting PATH` is one of N processes of this machine.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from conf.errors import UsageError
from conf.types.schema import Dtype
from conf.units import FLOAT32_BYTES, count_of
from rates.links import Run, Stopwatch, link_times
from rates.record import (
    SMALL_LAYER,
    AttentionRate,
    AttentionShape,
    DeviceRates,
    LinkTime,
    MeasuredSpread,
    Product,
    ProductRate,
    RatesFolder,
    RatesPlan,
)
from train_core.job.failures import ended_by_failure
from train_core.job.rank import environment
from train_core.model.initialize import DTYPES
from train_core.model.transformer import Layer
from train_core.parallel.collectives import Axis
from train_core.parallel.groups import gather_objects
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

SMALL = 16
"""So few elements that arithmetic on them costs nothing beside the call."""

NUM_SMALL_LAYERS = 4
SHORTEST_SECONDS = 1e-9
"""Stands in where noise makes the time with small kernels no longer than the time without: it has to be positive."""


def product_rates(stopwatch: Stopwatch, plan: RatesPlan) -> list[ProductRate]:
    """Measure matrix products of every shape in every precision."""
    shapes = [
        *((product, True) for product in plan.large_products),
        *((product, False) for product in plan.thin_products),
    ]
    asked = [(dtype, product, is_large) for dtype in plan.dtypes for product, is_large in shapes]
    rates = stopwatch.mean_rates([(product.flops, _product(product, dtype, stopwatch)) for dtype, product, _ in asked])
    return [
        ProductRate(dtype=dtype, product=product, is_large=is_large, flops_per_second=rate)
        for (dtype, product, is_large), rate in zip(asked, rates, strict=True)
    ]


def _product(product: Product, dtype: Dtype, stopwatch: Stopwatch) -> Run:
    left = _random((product.rows, product.depth), dtype, stopwatch)
    right = _random((product.depth, product.columns), dtype, stopwatch)
    out = torch.mm(left, right)  # written again in every run, so that no run allocates memory
    return lambda: torch.mm(left, right, out=out)


def attention_rates(stopwatch: Stopwatch, plan: RatesPlan) -> list[AttentionRate]:
    """Measure fused causal attention, forward and backward, of every shape in every precision."""
    asked = [(dtype, shape) for dtype in plan.dtypes for shape in plan.attention_shapes]
    rates = stopwatch.mean_rates([(shape.flops, _attention(shape, dtype, stopwatch)) for dtype, shape in asked])
    return [
        AttentionRate(dtype=dtype, shape=shape, flops_per_second=rate)
        for (dtype, shape), rate in zip(asked, rates, strict=True)
    ]


def _attention(shape: AttentionShape, dtype: Dtype, stopwatch: Stopwatch) -> Run:
    size = (shape.num_sequences, shape.num_heads, shape.seq_length, shape.head_size)
    query, key, value, gradient = (_random(size, dtype, stopwatch) for _ in range(4))
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]

    def run() -> None:
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        torch.autograd.grad(out, inputs, gradient)

    return run


def memory_rates(stopwatch: Stopwatch, plan: RatesPlan) -> tuple[MeasuredSpread, MeasuredSpread]:
    """Bytes read and written per second by a copy and by a triad. Source: the counting of the STREAM benchmark."""
    device = stopwatch.world.device
    a, b, c = (torch.rand(plan.memory_bytes // FLOAT32_BYTES, device=device) for _ in range(3))
    num_bytes = a.numel() * FLOAT32_BYTES
    copied, added = stopwatch.mean_rates(
        # A copy reads one tensor and writes one, and a triad reads two and writes one.
        [(2 * num_bytes, lambda: a.copy_(b)), (3 * num_bytes, lambda: torch.add(b, c, alpha=0.5, out=a))]
    )
    return copied, added


def kernel_seconds(stopwatch: Stopwatch, plan: RatesPlan) -> MeasuredSpread:
    """Seconds of one kernel that computes next to nothing.

    A CPU pays every call of a layer in full; a GPU works through calls that were queued while it was busy.
    """
    return _queued_seconds(stopwatch, plan) if plan.kind == "gpu" else _called_seconds(stopwatch, plan)


def _called_seconds(stopwatch: Stopwatch, plan: RatesPlan) -> MeasuredSpread:
    """The time of small layers, forward and backward, divided by the kernels that the cost model counts in them."""
    layers = torch.nn.Sequential(*(Layer(SMALL_LAYER) for _ in range(NUM_SMALL_LAYERS)))
    size = (SMALL_LAYER.seq_length, 1, SMALL_LAYER.hidden_size)
    inputs = torch.rand(size, requires_grad=True)
    (whole,) = stopwatch.slowest_seconds([lambda: layers(inputs).sum().backward()])
    return whole.times(1 / (NUM_SMALL_LAYERS * plan.kernels_per_layer))


def _queued_seconds(stopwatch: Stopwatch, plan: RatesPlan) -> MeasuredSpread:
    """The seconds that small kernels add to a product that is long enough to queue all of them meanwhile."""
    product = _product(plan.large_products[0], plan.dtypes[-1], stopwatch)
    tensor = torch.ones(SMALL, device=stopwatch.world.device)

    def with_small_kernels() -> None:
        product()
        for _ in range(plan.num_small_kernels):
            tensor.mul_(1.0)

    # Behind a long product the host gets ahead. Otherwise its calls would be timed, and not the kernels.
    alone, both = stopwatch.slowest_seconds([product, with_small_kernels])
    added = [max(seconds - alone.median, SHORTEST_SECONDS) for seconds in (both.median, both.lowest, both.highest)]
    return MeasuredSpread(median=added[0], lowest=added[1], highest=added[2]).times(1 / plan.num_small_kernels)


def _random(size: tuple[int, ...], dtype: Dtype, stopwatch: Stopwatch) -> Tensor:
    """Random data: constants would draw less power and let the device clock higher."""
    return torch.rand(size, device=stopwatch.world.device).sub_(0.5).to(DTYPES[dtype])


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
    """Be the rank that srun's environment says; raises UsageError where no launcher gave a seat."""
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
    parser = argparse.ArgumentParser(prog="python -m rates.device", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--meeting", type=Path, required=True, help="a file through which the ranks find each other")
    given = parser.parse_args()
    seat = Seat(given.rank, given.size, given.rank, file_rendezvous(given.meeting.absolute()))
    run_rank(RatesFolder(given.folder), seat, given.rank)


if __name__ == "__main__":
    main()
