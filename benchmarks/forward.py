"""A forward test: rows that were predicted before anybody had looked at them, and what intervals hold of them.

benchmarks/published_3.csv says in its forward_* columns what commit 1103498b predicted of each row. No constant is
fitted to these rows. The rule of the widths of today takes its parameters from the rows of the other two files alone,
but forms of it that held between 43 and 87 % of these rows had been seen before one was chosen: only tables that nobody
here has seen judge the widths of today.
"""

from __future__ import annotations

import numpy as np

from benchmarks.level_results import LevelResult, level_result
from benchmarks.measured_rows import MeasuredRow, measured_rows, published_rows
from benchmarks.published_rows import PUBLISHED
from sweeps.confidence import Interval, interval_around, load_validated
from sweeps.table.cells import text_of

PUBLISHED_3 = PUBLISHED.with_name("published_3.csv")
AS_IT_HAPPENED = "forward, with the ranges of that day"
WITH_TODAYS_WIDTHS = "forward, with the widths of today"


def forward_results() -> list[LevelResult]:
    """The errors of that day's predictions, with the ranges that were stated then, and with those of today."""
    rows = [row for row in measured_rows(published_rows((PUBLISHED_3,))) if _is_new(row)]
    return [
        _result(AS_IT_HAPPENED, rows, [_interval_of_that_day(row) for row in rows]),
        _result(WITH_TODAYS_WIDTHS, rows, [_interval_of_today(row) for row in rows]),
    ]


def _is_new(row: MeasuredRow) -> bool:
    """True if the row was predicted, and is neither set aside nor a configuration of the other two files."""
    says = row.compared.row
    told = text_of(says, "seen_configuration") or text_of(says, "set_aside")
    return bool(text_of(says, "forward_iter_time_s")) and not told


def _result(name: str, rows: list[MeasuredRow], around: list[Interval]) -> LevelResult:
    # What one group of sources measured on one device; groups are as large as a source, so that each counts once.
    tables = [f"{text_of(row.compared.row, 'table_group')}, {text_of(row.compared.row, 'gpu')}" for row in rows]
    measured = np.array([row.seconds for row in rows])
    ratios = np.log([_seconds(row, "iter_time") for row in rows] / measured)
    return level_result(name, len(set(tables)), tables, measured, ratios, around)


def _interval_of_that_day(row: MeasuredRow) -> Interval:
    return Interval(_seconds(row, "low"), _seconds(row, "high"), 0.0, ())


def _interval_of_today(row: MeasuredRow) -> Interval:
    run = row.run
    return interval_around(_seconds(row, "iter_time"), run.setup, run.implementation.name, load_validated())


def _seconds(row: MeasuredRow, name: str) -> float:
    return float(text_of(row.compared.row, f"forward_{name}_s"))
