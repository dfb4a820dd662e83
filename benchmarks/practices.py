"""What runs of each practice take, over what was predicted: how it is learned from rows of which who measured is known.

A table is what one group of sources measured on one device with one trainer: its rows err together, and every table
counts as much as any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from benchmarks.levels import Ends
from benchmarks.published_rows import MeasuredRow, weighted_quantile
from conf.grouped import grouped
from sweeps.confidence import width_of
from sweeps.practice import Level, load_levels
from sweeps.table.cells import text_of

Floats = NDArray[np.float64]
SHARE = 0.8
"""Of the measurements, so many are to lie in their intervals."""


def who_measured(row: MeasuredRow) -> str:
    return text_of(row.compared.row, "measured_by")


def group_of(row: MeasuredRow) -> str:
    """The group of sources: one machine and its people, or the releases of one maker."""
    return text_of(row.compared.row, "table_group")


def table_of_group(row: MeasuredRow) -> tuple[str, str, str]:
    return group_of(row), text_of(row.compared.row, "gpu"), row.run.implementation.name


def log_taken(row: MeasuredRow) -> float:
    """The logarithm of the measured over the predicted step, as it is predicted today."""
    return log(row.seconds / row.compared.prediction.estimate.step_seconds)


def learn(rows: Sequence[MeasuredRow]) -> Level:
    """The level of rows of one practice.

    Errors have two parts: one that the rows of a table share, and one that each has of its own. Of n tables the next is
    the largest with a chance of 1 in n + 1, so that an interval is wider than that of the rows at hand; where rows
    differ more within tables than tables do, there is more than one draw in each.
    """
    taken, widths = np.array([log_taken(row) for row in rows]), np.array([width_of(row.run.setup) for row in rows])
    tables = [table_of_group(row) for row in rows]
    sizes = Counter(tables)
    of_table = {table: taken[[each == table for each in tables]] for table in sizes}
    within = float(np.mean([np.var(each, ddof=1) for each in of_table.values() if len(each) > 1]))
    means = [float(each.mean()) for each in of_table.values()]
    by_chance = float(np.mean([within / size for size in sizes.values()]))
    between = max(0.0, float(np.var(means, ddof=1)) - by_chance)
    draws = len(sizes) * (between + within) / between if between else len(rows)
    outside = (1 - min(1.0, SHARE * (1 + 1 / draws))) / 2
    weights = np.array([1 / sizes[table] for table in tables])
    low, middle, high = (weighted_quantile(taken / widths, weights, share) for share in (outside, 0.5, 1 - outside))
    # A run that is tuned takes what is predicted, so that this is always among what is expected.
    figures = {
        "low": min(low, 0.0),
        "middle": middle,
        "high": max(high, 0.0),
        "between": between**0.5,
        "within": within**0.5,
    }
    return Level(**{name: round(value, 4) for name, value in figures.items()}, tables=len(sizes), rows=len(rows))


def learn_without(rows: Sequence[MeasuredRow], row: MeasuredRow) -> Level:
    """The level of the row's practice by all of these rows but those of its group of sources."""
    others = [each for each in rows if who_measured(each) == who_measured(row) and group_of(each) != group_of(row)]
    return learn(others)


def left_out_levels(rows: Sequence[MeasuredRow]) -> list[Level]:
    """For each row the level that was learned without its group of sources."""
    by_group = {key: learn_without(rows, of[0]) for key, of in grouped(rows, _group_and_who).items()}
    return [by_group[_group_and_who(row)] for row in rows]


def _group_and_who(row: MeasuredRow) -> tuple[str, str]:
    return group_of(row), who_measured(row)


def left_out_intervals(rows: Sequence[MeasuredRow]) -> list[Ends]:
    """The interval of each row around today's prediction, by the level that was learned without its group."""
    levels = left_out_levels(rows)
    return [
        _ends(level, row, row.compared.prediction.estimate.step_seconds)
        for row, level in zip(rows, levels, strict=True)
    ]


def ends_around(row: MeasuredRow, seconds: float) -> Ends:
    """The interval around predicted seconds of a row, by the levels that are in use."""
    practice = row.compared.prediction.configuration.practice
    assert practice is not None, f"{row.place} does not say who measured it"
    return _ends(load_levels()[practice], row, seconds)


def _ends(level: Level, row: MeasuredRow, seconds: float) -> Ends:
    width = width_of(row.run.setup)
    return seconds * exp(level.low * width), seconds * exp(level.high * width)
