"""The published rows that predictions are held against: benchmarks/published.csv, priced and compared.

Its `set` column says which validation a row belongs to; rows that were only recalled are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from results.score import RowComparison, comparison
from sweeps.table.file import read_table
from sweeps.table.prices import PricedRow, price

Item = TypeVar("Item")
PUBLISHED = Path(__file__).with_name("published.csv")
FRONTIER_SCALING = Path(__file__).with_name("frontier_scaling.csv")


@dataclass(frozen=True)
class RowSet:
    """The rows of one validation set, in the order of the file."""

    priced: tuple[PricedRow, ...]

    @cached_property
    def comparisons(self) -> list[RowComparison]:
        return [one for one in map(comparison, self.priced) if one is not None]

    def sweeps(self) -> dict[str, list[RowComparison]]:
        """The rows that hold measurements, by the sweep of the source that they belong to."""
        return _groups_of(self.comparisons, sweep_of)

    def tables(self) -> dict[str, RowSet]:
        """The rows by the source's table."""
        found = _groups_of(self.priced, lambda row: re.split(r": |/", row.record.row["table"])[-1])
        return {name: RowSet(tuple(rows)) for name, rows in found.items()}


def sweep_of(compared: RowComparison) -> str:
    """The sweep of the source that a row belongs to: the section that its notes name, else its table."""
    section = re.search(r'section "([^"]+)"', compared.row["notes"])
    return section.group(1) if section else compared.row["table"]


def row_sets(path: Path = PUBLISHED, column: str = "set") -> dict[str, RowSet]:
    """The rows of a table by what they say in `column`."""
    found = _groups_of(price(read_table(path).records), lambda row: row.record.row[column])
    return {name: RowSet(tuple(rows)) for name, rows in found.items()}


def _groups_of(items: Iterable[Item], name_of: Callable[[Item], str]) -> dict[str, list[Item]]:
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(name_of(item), []).append(item)
    return groups
