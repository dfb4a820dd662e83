"""How often each value of a knob ran out of memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from results.knobs.table import KnobColumn, KnobTable, Set, columns_of


@dataclass(frozen=True)
class MemoryCount:
    """Of the trials with this value, how many there were and how many ran out of memory."""

    column: KnobColumn
    value: Set
    num_trials: int
    num_out: int

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


def _counts_of(table: KnobTable, column: KnobColumn) -> list[MemoryCount]:
    every = Counter(point.settings[column.name] for point in table.points)
    out = Counter(point.settings[column.name] for point in table.points if point.rate is None)
    return [MemoryCount(column, value, every[value], out[value]) for value in column.values]
