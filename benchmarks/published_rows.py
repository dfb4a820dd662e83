"""The published rows that predictions are held against: benchmarks/published.csv, priced and compared.

Its `set` column says which validation a row belongs to; rows that were only recalled are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from conf.grouped import grouped
from results.score import RowComparison, comparison
from sweeps.table.file import read_table
from sweeps.table.prices import PricedRow, price

PUBLISHED = Path(__file__).with_name("published.csv")
FRONTIER_SCALING = Path(__file__).with_name("frontier_scaling.csv")


def row_sets(path: Path = PUBLISHED, column: str = "set") -> dict[str, list[PricedRow]]:
    """The rows of a table by what they say in `column`, those of each in the order of the file."""
    return grouped(price(read_table(path).records), lambda row: row.record.row[column])


def compared_rows(priced: Iterable[PricedRow]) -> list[RowComparison]:
    """Those of the rows that were priced and hold measurements."""
    return [one for one in map(comparison, priced) if one is not None]


def sweep_of(compared: RowComparison) -> str:
    """The sweep of the source that a row belongs to: the section that its notes name, else its table."""
    section = re.search(r'section "([^"]+)"', compared.row["notes"])
    return section.group(1) if section else compared.row["table"]
