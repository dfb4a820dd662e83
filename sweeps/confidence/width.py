"""How wide an interval is beside the usual one: wider for small layers, and for plans outside of what was validated."""

from __future__ import annotations

from conf.setup import Setup
from train_core.costs.counts.flops import layer_forward_flops

SMALL_LAYER_FLOPS = 2e12
SMALLER_IS_WIDER = 0.3
"""Assumed: a layer of a tenth of those FLOPs has an interval twice as wide, for its kernels are bound by what a host
needs to launch them, which differs between clusters more than what devices compute. Intervals by kind of plan (experts,
narrow products, context parallelism) served tables that were left out less well."""

OUTSIDE_IS_WIDER = 1.2
MOST_SIDES = 2
"""Assumed: a plan outside of what was validated is off by so much more, for each of at most two sides."""


def width_of(setup: Setup, num_sides_outside: int) -> float:
    """Factor on the logarithms of an interval's ends."""
    smaller = max(1.0, SMALL_LAYER_FLOPS / layer_flops_per_device(setup))
    return float(smaller**SMALLER_IS_WIDER * outside_factor(num_sides_outside))


def outside_factor(num_sides: int) -> float:
    """The part of it that lying outside of what was validated has."""
    return float(OUTSIDE_IS_WIDER ** min(num_sides, MOST_SIDES))


def layer_flops_per_device(setup: Setup) -> float:
    """FLOPs of one layer's forward pass of one micro-batch on one device."""
    parallel = setup.parallel
    ranks = parallel.tensor_parallel_size * parallel.context_parallel_size
    return layer_forward_flops(setup.model, setup.batch.micro_batch_size) / ranks
