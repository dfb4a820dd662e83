"""Constants of the cost model that belong to no device, no cluster and no trainer."""

from __future__ import annotations

from conf.schema import Fraction, Frozen, NonNegative


class Scale(Frozen):
    """What communication costs although computation hides it, and what many devices cost.

    Attributes:
        shown: share of a collective that still costs although computation runs beside it, because its kernels take
            multiprocessors and memory bandwidth from the computation.
        latency: factor on the latency of every step of a ring.
        slowest: spread of the devices' speeds; the slowest of n is `1 + slowest x sqrt(2 ln n)` times as slow.
        taper: share of the bandwidth between nodes that every doubling of the nodes costs.
    """

    shown: Fraction
    latency: NonNegative
    slowest: NonNegative
    taper: NonNegative


SCALE = Scale(shown=0.65, latency=1.6, slowest=0.02, taper=0.1)
