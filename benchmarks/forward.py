"""A forward test: rows that were predicted before anybody had looked at them, and what intervals hold of them.

The same rows as they are predicted today say what became better since: no constant is fitted to them, but mechanisms
were chosen, and readings of tables corrected, by what these rows showed.

benchmarks/published_3.csv says in its forward_* columns what commit 1103498b predicted of each row. No constant is
fitted to these rows. The rule of the widths of today takes its parameters from the rows of the other two files alone,
but forms of it that held between 43 and 87 % of these rows had been seen before one was chosen: only tables that nobody
here has seen judge the widths of today.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.level_results import LevelResult, level_result
from benchmarks.measured_rows import MeasuredRow, measured_rows, published_rows
from benchmarks.published_rows import PUBLISHED
from sweeps.confidence import Interval, interval_around, load_validated
from sweeps.table.cells import text_of

PUBLISHED_3 = PUBLISHED.with_name("published_3.csv")
AS_IT_HAPPENED = "forward, with the ranges of that day"
WITH_TODAYS_WIDTHS = "forward, with the widths of today"
AS_OF_TODAY = "the same rows, as predicted today"


def forward_results() -> list[LevelResult]:
    """The errors of that day's predictions, with the ranges of that day and with those of today; and today's."""
    rows = [row for row in measured_rows(published_rows((PUBLISHED_3,))) if _is_new(row)]
    then, now = ([seconds(row) for row in rows] for seconds in (_seconds_of_that_day, _seconds_of_today))
    return [
        _result(AS_IT_HAPPENED, rows, then, [_interval_of_that_day(row) for row in rows]),
        _result(WITH_TODAYS_WIDTHS, rows, then, _intervals_of_today(rows, then)),
        _result(AS_OF_TODAY, rows, now, _intervals_of_today(rows, now)),
    ]


def _is_new(row: MeasuredRow) -> bool:
    """True if the row was predicted, and is neither set aside nor a configuration of the other two files."""
    says = row.compared.row
    told = text_of(says, "seen_configuration") or text_of(says, "set_aside")
    return bool(text_of(says, "forward_iter_time_s")) and not told


def _result(name: str, rows: Sequence[MeasuredRow], seconds: Sequence[float], around: list[Interval]) -> LevelResult:
    # What one group of sources measured on one device; groups are as large as a source, so that each counts once.
    tables = [f"{text_of(row.compared.row, 'table_group')}, {text_of(row.compared.row, 'gpu')}" for row in rows]
    measured = np.array([row.seconds for row in rows])
    ratios = np.log(np.array(seconds) / measured)
    return level_result(name, len(set(tables)), tables, measured, ratios, around)


def _interval_of_that_day(row: MeasuredRow) -> Interval:
    return Interval(_stated(row, "low"), _stated(row, "high"), 0.0, ())


def _intervals_of_today(rows: Sequence[MeasuredRow], seconds: Sequence[float]) -> list[Interval]:
    known = load_validated()
    return [
        interval_around(each, row.run.setup, row.run.implementation.name, known)
        for row, each in zip(rows, seconds, strict=True)
    ]


def _seconds_of_that_day(row: MeasuredRow) -> float:
    return _stated(row, "iter_time")


def _seconds_of_today(row: MeasuredRow) -> float:
    return row.compared.prediction.estimate.step_seconds


def _stated(row: MeasuredRow, name: str) -> float:
    return float(text_of(row.compared.row, f"forward_{name}_s"))
