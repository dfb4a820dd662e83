"""Forward tests: rows that were predicted before anybody had looked at them, and what intervals hold of them.

The rows of a test say in their forward_* columns what a commit predicted of each. No constant is fitted to them. The
same rows as they are predicted today say what became better since: that is no blind test, because mechanisms were
chosen, and readings of tables corrected, by what these rows showed.

The rule of the widths of intervals changed between the first two, so that the second test was the first blind one of
that rule, and the third another. Today's goes by who measured, and was learned from all three: here each row's interval
is by a rule that was learned without its group of sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.levels import Ends, LevelResult, level_result
from benchmarks.practices import left_out_intervals
from benchmarks.published_rows import PUBLISHED, MeasuredRow, measured_rows, published_rows
from sweeps.table.cells import text_of


class ForwardTest(NamedTuple):
    """A file of rows, and the commit whose predictions it holds."""

    path: Path
    commit: str

    @property
    def as_it_happened(self) -> str:
        return f"forward, as commit {self.commit} predicted"

    @property
    def as_of_today(self) -> str:
        return f"the same rows as {self.commit}'s, as predicted today"


FIRST = ForwardTest(PUBLISHED.with_name("published_3.csv"), "1103498b")
SECOND = ForwardTest(PUBLISHED.with_name("published_4.csv"), "74a0173b")
THIRD = ForwardTest(PUBLISHED.with_name("published_5.csv"), "24cf67e0")
FORWARD_TESTS = (FIRST, SECOND, THIRD)
LAST = FORWARD_TESTS[-1]


@cache
def forward_rows(test: ForwardTest) -> Sequence[MeasuredRow]:
    """The rows of a test that were predicted and are neither set aside nor configurations of earlier files."""
    return [row for row in measured_rows(published_rows((test.path,))) if _is_new(row)]


def forward_results() -> list[LevelResult]:
    """Of each test the errors of that day's predictions, with the ranges of that day, and those of today's.

    Today's intervals were learned without the group of sources of a row.
    """
    by_test = [forward_rows(test) for test in FORWARD_TESTS]
    around = iter(left_out_intervals([row for rows in by_test for row in rows]))
    results = []
    for test, rows in zip(FORWARD_TESTS, by_test, strict=True):
        then = [_stated(row, "iter_time") for row in rows]
        of_that_day = [(_stated(row, "low"), _stated(row, "high")) for row in rows]
        now = [row.compared.prediction.estimate.step_seconds for row in rows]
        today = [next(around) for _ in rows]
        results += [
            _result(test.as_it_happened, rows, then, of_that_day),
            _result(test.as_of_today, rows, now, today),
        ]
    return results


def _is_new(row: MeasuredRow) -> bool:
    says = row.compared.row
    told = text_of(says, "seen_configuration") or text_of(says, "set_aside")
    return bool(text_of(says, "forward_iter_time_s")) and not told


def _result(name: str, rows: Sequence[MeasuredRow], seconds: Sequence[float], around: Sequence[Ends]) -> LevelResult:
    # What one group of sources measured on one device; groups are as large as a source, so that each counts once.
    tables = [f"{text_of(row.compared.row, 'table_group')}, {text_of(row.compared.row, 'gpu')}" for row in rows]
    measured = np.array([row.seconds for row in rows])
    ratios = np.log(np.array(seconds) / measured)
    return level_result(name, len(set(tables)), tables, measured, ratios, around)


def _stated(row: MeasuredRow, name: str) -> float:
    return float(text_of(row.compared.row, f"forward_{name}_s"))
