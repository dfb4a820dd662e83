"""The order in which the sets of a mixture take turns. No torch.

After every sample each set has had its weight's share of them to within less than one, as in Megatron-LM's blends. Of
integer weights the order repeats after their sum, so that the set of any sample is looked up, and training can go on
from any step in any layout.

Each set's j-th sample has a window of places in which it keeps that promise, and of the sets whose window is open the
one whose window closes first comes next. Source: Baruah et al. 1996, "Proportionate progress", sections 2 and 3, where
on one processor the earliest deadline is enough; Tijdeman 1980, "The chairman assignment problem".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LONGEST_PERIOD = 2**20
"""Weights that repeat only after more samples are rounded to parts of so many, which changes a share by a millionth."""


class Blend(NamedTuple):
    """The sets of a period of samples.

    Attributes:
        shares: samples of each set in a period.
        order: the number of the set of each sample.
        places: how many samples of the same set came before it in the period.
    """

    shares: tuple[int, ...]
    order: NDArray[np.int32]
    places: NDArray[np.int32]

    def place(self, sample: int) -> tuple[int, int]:
        """The set of a sample, and which of that set's samples it is, both from 0."""
        period, at = divmod(sample, len(self.order))
        chosen = int(self.order[at])
        return chosen, period * self.shares[chosen] + int(self.places[at])

    def counts(self, num_samples: int) -> list[int]:
        """How many of the first samples are of each set."""
        periods, rest = divmod(num_samples, len(self.order))
        begun = np.bincount(self.order[:rest], minlength=len(self.shares))
        return [periods * share + int(count) for share, count in zip(self.shares, begun, strict=True)]


@lru_cache(maxsize=4)
def blend_of(weights: tuple[float, ...]) -> Blend:
    """The blend of sets with these weights, which need not sum to 1."""
    shares = _shares(weights)
    period, given = sum(shares), [0] * len(shares)
    opening = [(0, number) for number in range(len(shares))]
    heapify(opening)
    closing = list[tuple[int, int]]()
    order, places = np.empty(period, np.int32), np.empty(period, np.int32)
    for at in range(period):
        while opening and opening[0][0] <= at:
            _, number = heappop(opening)
            heappush(closing, (-(-(given[number] + 1) * period // shares[number]), number))
        _, chosen = heappop(closing)
        order[at], places[at] = chosen, given[chosen]
        given[chosen] += 1
        if given[chosen] < shares[chosen]:
            heappush(opening, (given[chosen] * period // shares[chosen], chosen))
    return Blend(shares, order, places)


def _shares(weights: Sequence[float]) -> tuple[int, ...]:
    """The smallest integers in the ratio of the weights as they are written in decimals, or nearly in it."""
    exact = [Fraction(str(weight)) for weight in weights]
    parts = [weight / sum(exact) for weight in exact]
    period = math.lcm(*(part.denominator for part in parts))
    if period <= LONGEST_PERIOD:
        return tuple(int(part * period) for part in parts)
    return tuple(max(1, round(part * LONGEST_PERIOD)) for part in parts)
