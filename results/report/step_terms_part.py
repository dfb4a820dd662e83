"""Where the time of a measured step goes, beside where the cost model says that it goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from results.report.comparable import has_device_per_rank, measured_terms, named, predicted_terms
from results.report.table import Cell, ReportTable, number, text
from results.units import seconds
from sweeps.reading import TrialReading, ranked
from train_core.measurement import Breakdown

TERM_COLUMNS = ("compute s", "tensor s", "pipeline s", "data s", "all ranks s", "optimizer s")
COLUMNS = ("layout", "seconds are", "of", *TERM_COLUMNS, "sum s")


def step_terms_table(results: Sequence[TrialReading]) -> ReportTable | None:
    """Two rows for every trial with a breakdown, fastest trial first; None when no trial has one.

    Ranks that shared a device have no predicted row, because the cost model gives each a device of its own.
    """
    rows = tuple(row for result in ranked(list(results)) for row in _rows(result))
    return ReportTable(COLUMNS, rows, frozenset({*TERM_COLUMNS, "sum s"})) if rows else None


def _rows(result: TrialReading) -> Iterator[tuple[Cell, ...]]:
    breakdown = result.performance.breakdown if result.performance else None
    if breakdown is None:
        return
    if result.trial.estimate is not None and has_device_per_rank(result):
        yield _row(result, "predicted", "the slowest stage", predicted_terms(result.trial.estimate.step_terms))
    yield _row(result, "measured", _slowest(breakdown), measured_terms(breakdown.slowest))


def _slowest(breakdown: Breakdown) -> str:
    return f"rank {breakdown.slowest_rank} of {len(breakdown.ranks)}"


def _row(result: TrialReading, kind: str, whose: str, terms: tuple[float | None, ...]) -> tuple[Cell, ...]:
    """One row of the table. A term that is not known is part of another one, so the sum is still complete."""
    numbers = (number(seconds(value), value) for value in (*terms, sum(value or 0.0 for value in terms)))
    return text(named(result)), text(kind), text(whose), *numbers
