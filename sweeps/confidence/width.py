"""The width of an interval beside the usual one: wider for small layers, and for what few sources have measured."""

from __future__ import annotations

from collections.abc import Mapping

from conf.setup import Setup
from sweeps.confidence.traits import traits_of
from train_core.costs.counts.flops import layer_forward_flops

SMALL_LAYER_FLOPS = 2e12
SMALLEST_LAYER_FLOPS = 4e9
SMALLER_IS_WIDER = 0.1
"""Rows whose source was left out are off by 6.8 % where layers are that large, by 9.9 % at a fourth to a tenth of it
and by 11.2 % at a hundredth: a host has to launch their kernels, which differs between clusters more than what devices
compute. The smallest layers of published rows end it: of smaller ones nobody knows more."""

FEW_SOURCES = 2
FEW_IS_WIDER = 1.2
"""Tables whose source was left out are off by 5.8 % where two other sources or more show their device, their trainer
and each of their kinds, by 6.5, 8.0 and 10.3 % where one, two and three of these have fewer: 1.2 for each."""


def width_of(setup: Setup, num_few: int) -> float:
    """Factor on the logarithms of an interval's ends.

    Args:
        num_few: how many of the plan's device, trainer and kinds few sources have measured.
    """
    layer = max(layer_flops_per_device(setup), SMALLEST_LAYER_FLOPS)
    return float(max(1.0, SMALL_LAYER_FLOPS / layer) ** SMALLER_IS_WIDER * FEW_IS_WIDER**num_few)


def few_sources(setup: Setup, implementation: str, sources: Mapping[str, int], *, own: bool) -> tuple[str, ...]:
    """Return those of the plan's device, trainer and kinds with fewer sources than FEW_SOURCES: of each the fewest.

    Returns:
        At most one name of each.

    Args:
        sources: how many have measured each, by name.
        own: whether the cluster's own runs show its device and trainer.
    """
    machines = () if own else (tuple(block.cluster.device.name for block in setup.blocks), (implementation,))
    rarest = [min(names, key=lambda name: sources.get(name, 0)) for names in (*machines, kinds_of(setup)) if names]
    return tuple(name for name in rarest if sources.get(name, 0) < FEW_SOURCES)


def kinds_of(setup: Setup) -> tuple[str, ...]:
    """Return the kinds of a plan that sources may not have measured: its traits, and context parallelism."""
    return (*traits_of(setup), *(("context",) if setup.parallel.context_parallel_size > 1 else ()))


def layer_flops_per_device(setup: Setup) -> float:
    """FLOPs of one layer's forward pass of one micro-batch on one device."""
    parallel = setup.parallel
    ranks = parallel.tensor_parallel_size * parallel.context_parallel_size
    return layer_forward_flops(setup.model, setup.batch.micro_batch_size) / ranks
