"""The network that two runs fit together which differ in their batch alone.

What a step sends once costs the same whatever its batch. So two batches tell the network apart from the pace of the
devices: both steps are `pace x (the price on a network that costs nothing) + (what this network adds)`, or that pace
holds for both terms. Which of the two is true nobody knows, so that the interval spans both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt

from diagnose.diagnosis import Diagnosis, RunVerdict
from diagnose.happenings import crossing, network_gigabits, slower_network
from diagnose.understood import price_of
from sweeps.table.cells import text_of
from sweeps.table.columns import MEASURED_COLUMNS
from sweeps.table.configuration import Configuration

OF_THE_BATCH = ("global_batch", "micro_batch", "local_batch")
LEAST, MOST, FREE = 1e-3, 4.0, 1e4
"""Shares of the declared network between which one is looked for, and one that costs nothing."""
WIDEST = 4.0
"""An interval whose ends are further apart than this factor tells nothing."""


@dataclass(frozen=True)
class NetworkFit:
    """Gigabits a second of a node that two runs fit: the middle and the ends of an interval, and what is declared."""

    gigabits: float
    low: float
    high: float
    declared: float

    @property
    def in_words(self) -> str:
        span = f"{self.low:,.0f} to {self.high:,.0f} Gb/s a node"
        if self.low <= self.declared <= self.high:
            return f"both batches together fit {span}, as declared ({self.declared:,.0f})"
        return f"both batches together fit {span}, not the {self.declared:,.0f} that are declared"


def network_of(one: Diagnosis, other: Diagnosis) -> NetworkFit | None:
    """The network of two runs; None where they differ in more than the batch, or their steps do not tell."""
    both = (one, other)
    configurations = [each.understood.configuration for each in both]
    first, second = configurations
    if first is None or second is None or not _differ_in_batch(one, other):
        return None
    cluster = first.setup.cluster
    if first.setup.num_nodes == 1 or len(cluster.links) < 2:
        return None
    spans = [(each.measured.low_seconds, each.measured.high_seconds) for each in both if each.measured]
    found = [
        _share(first, second, seconds, paces_network) for seconds in product(*spans) for paces_network in (False, True)
    ]
    known = [share for share in found if share is not None]
    if len(known) < len(found) or max(known) > WIDEST * min(known):
        return None
    declared = network_gigabits(cluster)
    low, high = min(known) * declared, max(known) * declared
    return NetworkFit(sqrt(low * high), low, high, declared)


def _differ_in_batch(one: Diagnosis, other: Diagnosis) -> bool:
    rows = one.understood.row, other.understood.row
    columns = {name for row in rows for name in row} - set(MEASURED_COLUMNS)
    differing = {name for name in columns if text_of(rows[0], name) != text_of(rows[1], name)}
    flags = [{flag.name for flag, _ in each.understood.wrong_flags} for each in (one, other)]
    can_be_true = all(each.measured and each.verdict is not RunVerdict.IMPOSSIBLE for each in (one, other))
    return can_be_true and bool(differing) and differing <= set(OF_THE_BATCH) and flags[0] == flags[1]


def _share(first: Configuration, second: Configuration, seconds: Sequence[float], paces_network: bool) -> float | None:
    """The share of the declared network with which both runs have one pace; None where there is none in the range.

    Args:
        paces_network: what slows the devices slows what they send as well.
    """
    free = [price.step_seconds for price in price_of([slower_network(each, FREE) for each in (first, second)])]

    def gap(share: float) -> float:
        priced = [price.step_seconds for price in price_of([slower_network(each, share) for each in (first, second)])]
        if paces_network:
            return seconds[0] / priced[0] - seconds[1] / priced[1]
        one, other = (
            (measured - (price - without)) / without
            for measured, price, without in zip(seconds, priced, free, strict=True)
        )
        return one - other

    return crossing(gap, LEAST, MOST)
