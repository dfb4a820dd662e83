"""Groups of rows that are left out together, and benchmarks/levels.csv: how far predictions are off without each.

Errors have levels. Rows of one table err together, tables of one source do (its machine, its release, the hand that
tuned it), and sources that measured one generation of devices do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.published_rows import MeasuredRow

TABLE, GENERATION = "table", "generation"
GENERATIONS = {  # what the name of a device begins with, and its generation
    "A100": "Ampere",
    "A800": "Ampere",
    "B200": "Blackwell",
    "B300": "Blackwell",
    "GB": "Blackwell",
    "GH": "Hopper",
    "H": "Hopper",
    "Intel": "Intel",
    "MI": "AMD",
    "V100": "Volta",
}


def generation_of(device: str) -> str:
    """The generation of a device by its name; a device that is not known is a generation of its own."""
    return next((generation for start, generation in GENERATIONS.items() if device.startswith(start)), device)


LEVELS: dict[str, Callable[[MeasuredRow], str]] = {
    TABLE: lambda row: row.table,
    "source": lambda row: row.source,
    "trainer": lambda row: row.run.implementation.name,
    GENERATION: lambda row: generation_of(row.run.setup.cluster.device.name),
}


def groups_left_out(rows: Sequence[MeasuredRow], level: str) -> Iterator[tuple[list[int], list[int]]]:
    """Indices of the rows of each group of a level, and of those that are kept; with a table go all of its machines."""
    names = [LEVELS[level](row) for row in rows]
    for name in dict.fromkeys(names):
        members = [index for index, of_row in enumerate(names) if of_row == name]
        machines = {rows[index].machine for index in members} if level == TABLE else set()
        kept = [index for index, row in enumerate(rows) if names[index] != name and row.machine not in machines]
        yield members, kept


Ends = tuple[float, float]
"""The seconds between which a step is expected with 80 % probability."""

LEVEL_RESULTS = Path(__file__).with_name("levels.csv")


class LevelResult(NamedTuple):
    """The result of one level of leaving out; errors, shares and widths are means over tables.

    Attributes:
        groups: how many were left out, one after another.
        error: mean absolute relative error.
        inside: share of the rows in their interval of 80 %.
        width: upper over lower end of the interval, of which the mean is geometric.
    """

    level: str
    groups: int
    tables: int
    rows: int
    error: float
    inside: float
    width: float


def level_results(
    rows: Sequence[MeasuredRow],
    ratios: Mapping[str, NDArray[np.float64]],
    around: Mapping[str, Sequence[Ends]],
) -> list[LevelResult]:
    """One result for each level.

    Args:
        ratios: by level, log of predicted over measured of every row, by constants fitted without its group, (n,).
        around: by level, the interval of each row.
    """
    return [
        level_result(
            level,
            len({LEVELS[level](row) for row in rows}),
            [row.table for row in rows],
            np.array([row.seconds for row in rows]),
            ratios[level],
            around[level],
        )
        for level in ratios
    ]


def level_result(
    level: str,
    groups: int,
    tables: Sequence[str],
    measured: NDArray[np.float64],
    ratios: NDArray[np.float64],
    around: Sequence[Ends],
) -> LevelResult:
    """The result of one level.

    Args:
        tables: that of each row.
        measured: seconds of a step of each row, (n,).
        ratios: log of predicted over measured of each row, (n,).
        around: the interval of each row.
    """
    inside = [low <= seconds <= high for (low, high), seconds in zip(around, measured, strict=True)]
    widths = [log(high / low) for low, high in around]
    error, share, width = (mean_over_tables(each, tables) for each in (np.abs(np.expm1(ratios)), inside, widths))
    return LevelResult(level, groups, len(set(tables)), len(tables), error, share, float(np.exp(width)))


def mean_over_tables(values: Iterable[float], tables: Sequence[str]) -> float:
    """The mean over tables of the mean over the rows of each."""
    of_table: dict[str, list[float]] = {}
    for table, value in zip(tables, values, strict=True):
        of_table.setdefault(table, []).append(value)
    return float(np.mean([np.mean(each) for each in of_table.values()]))
