"""Counts how often each value of a knob ran out of memory, and finds the knob that decides that."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from results.knobs.sensitivity import MOST_POINTS, NUM_TREES, SEED, shares_of
from results.knobs.table import KnobColumn, KnobTable, Set, columns_of, setting_text

FEWEST_OF_EACH = 6
"""With fewer trials that ran out, or fewer that did not, trees learn those few by heart. Assumed."""
MOST_ROWS = 6
"""Neighbouring values of a knob with more of them share a row."""

KnobShare: TypeAlias = tuple[KnobColumn, float]


@dataclass(frozen=True)
class MemoryCount:
    """The number of trials with these values, and how many of them ran out of memory."""

    column: KnobColumn
    values: tuple[Set, ...]
    num_trials: int
    num_out: int

    @property
    def words(self) -> str:
        """The value, or the first and the last of several."""
        ends = dict.fromkeys((setting_text(self.values[0]), setting_text(self.values[-1])))
        return " to ".join(ends)

    @property
    def share(self) -> float:
        return self.num_out / self.num_trials


def memory_counts(table: KnobTable) -> list[MemoryCount]:
    """A row for every value of every knob that varies, the knob with the largest differences first.

    Empty where nothing ran out of memory.
    """
    if all(point.rate is not None for point in table.points):
        return []
    by_column = [_counts_of(table, column) for column in columns_of(table.points)]
    by_column.sort(key=lambda counts: min(each.share for each in counts) - max(each.share for each in counts))
    return [each for counts in by_column for each in counts]


def memory_shares(table: KnobTable) -> list[KnobShare]:
    """Return each knob's share in whether a point runs out of memory, the largest first.

    The shares are those of SHAP values of trees that tell the points with a rate from those without. Empty where there
    are too few of either.
    """
    out = np.array([point.rate is None for point in table.points], dtype=float)
    if min(out.sum(), len(out) - out.sum()) < FEWEST_OF_EACH:
        return []
    # Importing what is behind this takes seconds.
    from results.knobs.forest import Forest

    columns = columns_of(table.points)
    rows = np.random.default_rng(SEED).permutation(len(out))[:MOST_POINTS]
    codes = np.array([[column.code(table.points[row].settings[column.name]) for column in columns] for row in rows])
    shares = shares_of(Forest(codes.astype(float), out[rows], NUM_TREES, SEED).shap_values(codes.astype(float)))
    return sorted(zip(columns, map(float, shares), strict=True), key=lambda share: -share[1])


def _counts_of(table: KnobTable, column: KnobColumn) -> list[MemoryCount]:
    every = Counter(point.settings[column.name] for point in table.points)
    out = Counter(point.settings[column.name] for point in table.points if point.rate is None)
    groups = np.array_split(np.arange(len(column.values)), min(len(column.values), MOST_ROWS))
    groups_of_values = [tuple(column.values[number] for number in group) for group in groups]
    return [
        MemoryCount(column, values, sum(every[value] for value in values), sum(out[value] for value in values))
        for values in groups_of_values
    ]
