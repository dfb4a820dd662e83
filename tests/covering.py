"""Few cases that still cover: every pair of options that any case has together is in one that is kept.

Faults come from one option or from two that meet far more often than from three (combinatorial testing), so `make test`
runs these. `make test-all` runs every case.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import combinations
from typing import TypeVar

Case = TypeVar("Case")
Pair = tuple[tuple[str, Hashable], tuple[str, Hashable]]


def covering(cases: Sequence[Case], options: Callable[[Case], Mapping[str, Hashable]]) -> list[Case]:
    """A part of `cases`, in their order, in which each pair of options' values meets that meets in any case.

    Greedy: the next case is the one that brings most new pairs; among equals the first.

    Args:
        options: the values of a case by name, for instance `{"schedule": "1f1b", "zero_stage": 2}`.
    """
    pairs = [_pairs(options(case)) for case in cases]
    missing = set[Pair]().union(*pairs)
    kept: list[int] = []
    most = [(-len(each), index) for index, each in enumerate(pairs)]
    heapify(most)
    while missing:
        # What a case brings only shrinks, so one that still brings as much as it did is ahead of all behind it.
        brought, index = most[0]
        brings = -len(pairs[index] & missing)
        if brings > brought:
            heapreplace(most, (brings, index))
            continue
        heappop(most)
        kept.append(index)
        missing -= pairs[index]
    return [cases[index] for index in sorted(kept)]


def _pairs(values: Mapping[str, Hashable]) -> set[Pair]:
    """All pairs of an option's value with another's; a single option is paired with itself."""
    items = sorted(values.items(), key=lambda item: item[0])
    return {(item, item) for item in items} | set(combinations(items, 2))
