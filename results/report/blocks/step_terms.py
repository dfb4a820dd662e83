"""The parts of the time of a step, predicted beside measured: a table and bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from conf.units import MILLI
from results.report.blocks.charts import category, quantity, tooltip
from results.report.findings.comparable import display_name, measured_terms, pairs, predicted_terms, timed_pairs
from results.report.section import Plot
from results.table import Cell, Table, number, text
from results.units import round_to_digits, seconds
from sweeps.reading import TrialReading
from train_core.measurement import Breakdown

MOST_BARS = 12
"""Trials whose steps are drawn term by term, the fastest ones."""
ROW_HEIGHT = 38
TERMS = ("compute", "tensor parallel", "pipeline and bubble", "data parallel", "waiting for all ranks", "optimizer")
"""In the order of `StepTerms`."""
TERM_COLUMNS = ("compute s", "tensor s", "pipeline s", "data s", "all ranks s", "optimizer s")
STEP_COLUMNS = ("layout", "seconds are", "of", *TERM_COLUMNS, "sum s")


def step_table(breakdowns: Sequence[TrialReading]) -> Table:
    """Two rows for a trial; ranks that shared a device have no predicted one."""
    rows = tuple(row for result in breakdowns for row in _step_rows(result))
    return Table(STEP_COLUMNS, rows, frozenset({*TERM_COLUMNS, "sum s"}))


def _step_rows(result: TrialReading) -> Iterator[tuple[Cell, ...]]:
    breakdown = breakdown_of(result)
    assert breakdown is not None
    for pair in timed_pairs(pairs([result])):
        yield _step_row(result, "predicted", "the slowest stage", predicted_terms(pair.predicted.step_terms))
    whose = f"rank {breakdown.slowest_rank} of {len(breakdown.ranks)}"
    yield _step_row(result, "measured", whose, measured_terms(breakdown.slowest))


def _step_row(result: TrialReading, kind: str, whose: str, terms: tuple[float | None, ...]) -> tuple[Cell, ...]:
    """One row of the table. A term that is not known is part of another one, so the sum is still complete."""
    numbers = (number(seconds(value), value) for value in (*terms, sum(value or 0.0 for value in terms)))
    return text(display_name(result)), text(kind), text(whose), *numbers


def term_bars(breakdowns: Sequence[TrialReading]) -> Plot:
    """Plot where a step goes, for each sequence of its batch, so that different batches share one axis."""
    values = [value for result in breakdowns[:MOST_BARS] for value in _term_values(result)]
    of = f" The {MOST_BARS} fastest of {len(breakdowns)}." if len(breakdowns) > MOST_BARS else ""
    return Plot(
        "terms-beside",
        f"Milliseconds of a step for each sequence of its batch, by what they are spent on.{of}",
        {
            "data": {"values": values},
            "mark": "bar",
            "encoding": {
                # Rows and no facets, since only a single view can fill the width of the page.
                "y": category("row", sort=None, axis={"labelExpr": "split(datum.label, '|')", "labelLimit": 0}),
                "x": quantity("ms", "ms per sequence", stack="zero"),
                "color": category("term", sort=list(TERMS)),
                "order": {"field": "order", "type": "quantitative"},
                "tooltip": tooltip("layout", "seconds are", "term", "ms"),
            },
            "height": ROW_HEIGHT * len({value["row"] for value in values}),
        },
    )


def _term_values(result: TrialReading) -> Iterator[dict[str, Any]]:
    breakdown, experiment = breakdown_of(result), result.planned
    assert breakdown is not None
    kinds: list[tuple[str, tuple[float | None, ...]]] = [
        ("predicted", predicted_terms(pair.predicted.step_terms)) for pair in timed_pairs(pairs([result]))
    ]
    kinds.append(("measured", measured_terms(breakdown.slowest)))
    for kind, terms in kinds:
        for order, (name, term) in enumerate(zip(TERMS, terms, strict=True)):
            if term:
                ms = round_to_digits(term / experiment.batch.global_batch_size / MILLI)
                row = f"{display_name(result)}|{kind}"
                yield {
                    "row": row,
                    "layout": display_name(result),
                    "seconds are": kind,
                    "term": name,
                    "ms": ms,
                    "order": order,
                }


def breakdown_of(result: TrialReading) -> Breakdown | None:
    return result.performance.breakdown if result.performance else None
