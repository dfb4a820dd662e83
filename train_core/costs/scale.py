"""Constants of the cost model that belong to no device, no cluster and no trainer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from conf.schema import Frozen, NonNegative


class Scale(Frozen):
    """The cost of communication that computation hides, and that of many devices.

    Attributes:
        shown: share of a collective that still costs although computation runs beside it, because its kernels take
            multiprocessors and memory bandwidth from the computation.
        latency: factor on the latency of every step of a ring.
        slowest: spread of the devices' speeds; the slowest of n is `1 + slowest x sqrt(2 ln n)` times as slow.
        taper: share of the bandwidth between nodes that every doubling of the nodes costs.
        start: seconds that a collective of GPUs takes besides its ring: its kernel starts, and all ranks meet in it.
    """

    shown: Annotated[float, Field(ge=0, le=1)]
    latency: NonNegative
    slowest: NonNegative
    taper: NonNegative
    start: NonNegative


SCALE = Scale(shown=0.44, latency=0.762, slowest=0.0124, taper=0.0785, start=2.55e-5)
"""Fitted at once with the constants of chips, networks and trainers to the published rows of benchmarks/ (python -m
benchmarks.fitting), so that none of those tables is a test of them; docs/validation.md leaves each table out."""
