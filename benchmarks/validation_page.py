"""docs/validation.md: the targets, then every row with what was published and what is predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.target import Target
from benchmarks.validation import Section
from conf.units import GIBIBYTE
from results.score import Comparison, comparison
from results.units import ABSENT, significant
from sweeps.table.prices import PricedRow, RowPrediction

PAGE = Path(__file__).parents[1] / "docs" / "validation.md"
HEADING = """\
<!-- Written by `python -m benchmarks.validate`; do not edit. -->
# Validation

Published figures beside predictions of the cost model, row by row; misses are stated. Rows:
[benchmarks/published.csv](../benchmarks/published.csv), each with its source; what they count is in
[metrics.md](metrics.md), how a row is read in [estimate.md](estimate.md). `make bench` writes this page anew.

"Constant" is what no model at all would score: one rate per device, the best for those very rows. "Fitted on" says that
constants of a cluster were chosen on these rows, by the word of the cluster file; such rows are no test. Constants of a
trainer are in train_core/costs/trainers/implementation.py, which says of each where it comes from.
"""
ROW_COLUMNS = ("model", "devices", "layout", "published s", "predicted s", "error %")
MEMORY_COLUMNS = ("published GiB", "predicted GiB", "error %", "fits")
OUT_OF_MEMORY = "out of memory"


def page(sections: Sequence[Section]) -> str:
    """The whole page, ending in a newline."""
    targets = [target for section in sections for target in section.targets]
    parts = [HEADING, "## Targets\n", *_target_table(targets), ""]
    for section in sections:
        parts += [f"## {section.title}\n", section.about, "", *_row_table(section.rows), *_unpriced(section.rows)]
    return "\n".join(parts).rstrip() + "\n"


def _target_table(targets: Sequence[Target]) -> list[str]:
    return _table(("what", "target", "seen", "verdict"), [(t.what, t.target, t.seen, t.verdict) for t in targets])


def _row_table(rows: Iterable[PricedRow]) -> list[str]:
    priced = [(row, row.prediction) for row in rows if row.prediction]
    if not priced:
        return []
    compared = [comparison(row) for row, _ in priced]
    with_memory = any(one and (one.memory_bytes is not None or not one.fits) for one in compared)
    cells = [
        (*_step_cells(row, prediction, one), *(_memory_cells(prediction, one) if with_memory else ()))
        for (row, prediction), one in zip(priced, compared, strict=True)
    ]
    return [*_table(ROW_COLUMNS + (MEMORY_COLUMNS if with_memory else ()), cells), ""]


def _step_cells(row: PricedRow, prediction: RowPrediction, one: Comparison | None) -> tuple[str, ...]:
    setup = prediction.configuration.setup
    stage = prediction.configuration.stage
    name = row.record.row.get("model") or row.record.row.get("curve", "")
    return (
        name,
        str(setup.parallel.world_size),
        setup.label.replace("-", " ") + ("" if stage is None else f", stage {stage}"),
        significant(one.step_seconds if one else None, 4),
        significant(prediction.estimate.step_seconds, 4),
        _error(one.step_error if one else None),
    )


def _memory_cells(prediction: RowPrediction, one: Comparison | None) -> tuple[str, ...]:
    published = one.memory_bytes if one else None
    shown = OUT_OF_MEMORY if one and not one.fits else significant(published and published / GIBIBYTE)
    predicted = one.predicted_memory_bytes if one else prediction.memory_bytes
    error = one.memory_error if one else None
    return (shown, significant(predicted / GIBIBYTE), _error(error), "yes" if prediction.fits else "no")


def _error(share: float | None) -> str:
    return ABSENT if share is None else f"{100 * share:+.1f}"


def _unpriced(rows: Iterable[PricedRow]) -> list[str]:
    reasons = Counter(row.reason for row in rows if row.prediction is None)
    lines = [f"- {count} not priced: {reason}" for reason, count in reasons.most_common()]
    return [*lines, ""] if lines else []


# A bar inside a cell would end it.
def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [_line(columns), _line(["---"] * len(columns)), *(_line(row) for row in escaped)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
