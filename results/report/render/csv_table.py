"""A report as CSV: all that is known of trials, planned points, published figures and recorded stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas

from results.collect import collect, plan_frame
from results.csv_cells import as_cell
from results.published import PublishedFigure
from sweeps.reading import TrialReading
from sweeps.trial import SweepRecord


def csv_text(
    record: SweepRecord,
    results: Sequence[TrialReading],
    published: Sequence[PublishedFigure],
    stages: Sequence[Mapping[str, object]] = (),
) -> str:
    """The whole table; `stages` are rows of the pipeline stages whose step was recorded."""
    # Without its own dtypes, pandas would show counts as 8.0 in a column where some rows have none.
    table = report_frame(record, results, published, stages).map(as_cell).convert_dtypes()
    return str(table.to_csv(index=False, lineterminator="\n"))


def report_frame(
    record: SweepRecord,
    results: Sequence[TrialReading],
    published: Sequence[PublishedFigure],
    stages: Sequence[Mapping[str, object]] = (),
) -> pandas.DataFrame:
    """All parts in one table; the column `part` tells them apart, and no part fills another's columns."""
    # The age of a heartbeat is another one at every reading, and the report is to stay the same.
    trials = collect(results).drop(columns="heartbeat_age_seconds", errors="ignore").assign(part="trial")
    parts = [trials]
    if record.mode == "proxy" and record.plan:
        parts.append(plan_frame(record).assign(part="plan"))
    if published:
        figures_of = [
            {f"published_{name}": value for name, value in figure.model_dump().items()} for figure in published
        ]
        parts.append(pandas.DataFrame(figures_of).assign(part="published"))
    if stages:
        parts.append(pandas.DataFrame(stages).assign(part="stage"))
    rows = [row for part in parts for row in part.to_dict("records")]
    columns = ["part", *dict.fromkeys(column for part in parts for column in part.columns if column != "part")]
    return pandas.DataFrame(rows, columns=columns)
