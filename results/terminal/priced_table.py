"""Rows of a table of configurations as they were priced, beside what they measured, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conf.errors import ConfigError
from results.score import comparison
from results.table import Cell, Table, breakable, text
from results.units import ABSENT, error_percent, gib, seconds
from sweeps.table.cells import text_of
from sweeps.table.prices import PricedRow, RowPrediction

WIDE = 100
"""Columns of a terminal from which there is room for the names of models."""
MEASURED = ("measured s", "error %")
COLUMNS = ("line", "model", "layout", "step s", "80 %", "GiB", *MEASURED)
NAMES = " /_-"

Cells = Mapping[str, Cell]


def priced_table(rows: Sequence[PricedRow], width: int) -> Table:
    """The rows that were priced, by their lines in the file; the step and its error where a row has measured one.

    Args:
        width: columns of the terminal.
    """
    priced = [(row, row.prediction) for row in rows if row.prediction]
    cells = [
        {"line": text(row.record.line), **_predicted_cells(row, prediction), **_measured_cells(row)}
        for row, prediction in priced
    ]
    columns = _columns(cells, width)
    return Table(
        tuple(columns),
        tuple(tuple(row[name] for name in columns) for row in cells),
        frozenset(columns) - {"model", "layout"},
        title="Predicted, not measured, of each row",
        caption=" ".join(_notes([prediction for _, prediction in priced])),
    )


def _columns(cells: Sequence[Cells], width: int) -> list[str]:
    """The columns that say something of these rows, and for which there is room."""
    is_measured = any(row["error %"].text != ABSENT for row in cells)
    has_models = any(row["model"].text for row in cells)
    left_out = {*(() if is_measured else MEASURED), *(() if has_models and width >= WIDE else ("model",))}
    return [name for name in COLUMNS if name not in left_out]


def _notes(priced: Sequence[RowPrediction]) -> list[str]:
    """The meaning of the interval, and of the marks that occur."""
    notes = ["80 %: where four measurements of five are expected."]
    if any(prediction.interval.outside for prediction in priced):
        notes.append("*: outside of what was validated, on the sides that column pred_outside of --out names.")
    if any(_lacks_memory(prediction) for prediction in priced):
        notes.append("!: more memory than the device has.")
    return notes


def _predicted_cells(row: PricedRow, prediction: RowPrediction) -> Cells:
    interval = prediction.interval
    memory = gib(prediction.memory_bytes) if prediction.configuration.models_memory else ABSENT
    return {
        "model": breakable(text_of(row.record.row, "model"), NAMES),
        "layout": breakable(prediction.configuration.setup.label),
        "step s": text(seconds(prediction.estimate.step_seconds)),
        "80 %": text(f"{seconds(interval.low_seconds)}-{seconds(interval.high_seconds)}{'*' * bool(interval.outside)}"),
        "GiB": text(memory + ("!" if _lacks_memory(prediction) else "")),
    }


def _lacks_memory(prediction: RowPrediction) -> bool:
    return prediction.configuration.models_memory and not prediction.fits


def _measured_cells(row: PricedRow) -> Cells:
    """The step that the row measured, and the error of its prediction; dashes where it holds none that can be read."""
    try:
        compared = comparison(row)
    except ConfigError:
        compared = None
    if compared is None or compared.step_seconds is None:
        return dict.fromkeys(MEASURED, text(ABSENT))
    error = error_percent(compared.prediction.estimate.step_seconds, compared.step_seconds)
    return {"measured s": text(seconds(compared.step_seconds)), "error %": text(error)}
