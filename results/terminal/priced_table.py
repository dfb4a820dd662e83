"""Rows of a table of configurations as they were priced, beside what they measured, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from conf.errors import ConfigError
from results.score import comparison
from results.terminal.layout_names import LayoutCell
from results.units import ABSENT, error_percent, gib, seconds
from sweeps.table.cells import text_of
from sweeps.table.file import FIRST_LINE
from sweeps.table.prices import PricedRow, RowPrediction

WIDE = 100
"""Columns of a terminal from which there is room for the names of models."""
MEASURED = ("measured s", "error %")
COLUMNS = ("line", "model", "layout", "step s", "80 %", "GiB", *MEASURED)
NAMES = " /_-"

Cells = Mapping[str, str | LayoutCell]


def priced_table(rows: Sequence[PricedRow], width: int) -> Table:
    """The rows that were priced, by their lines in the file; the step and its error where a row has measured one.

    Args:
        width: columns of the terminal.
    """
    priced = [(line, row, row.prediction) for line, row in enumerate(rows, start=FIRST_LINE) if row.prediction]
    cells = [
        {"line": str(line), **_predicted_cells(row, prediction), **_measured_cells(row)}
        for line, row, prediction in priced
    ]
    columns = _columns(cells, width)
    table = _empty(columns, [prediction for _, _, prediction in priced])
    for row in cells:
        table.add_row(*(row[name] for name in columns))
    return table


def _columns(cells: Sequence[Cells], width: int) -> list[str]:
    """The columns that say something of these rows, and for which there is room."""
    is_measured = any(row["error %"] != ABSENT for row in cells)
    has_models = any(isinstance(row["model"], LayoutCell) and row["model"].name for row in cells)
    left_out = {*(() if is_measured else MEASURED), *(() if has_models and width >= WIDE else ("model",))}
    return [name for name in COLUMNS if name not in left_out]


def _empty(columns: Sequence[str], priced: Sequence[RowPrediction]) -> Table:
    notes = ["80 %: where four measurements of five are expected."]
    if any(prediction.interval.outside for prediction in priced):
        notes.append("*: outside of what was validated, on the sides that column pred_outside of --out names.")
    if any(_lacks_memory(prediction) for prediction in priced):
        notes.append("!: more memory than the device has.")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", caption_justify="left")
    table.title, table.caption = "Predicted, not measured, of each row", " ".join(notes)
    for name in columns:
        is_text = name in ("model", "layout")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text)
    return table


def _predicted_cells(row: PricedRow, prediction: RowPrediction) -> Cells:
    interval = prediction.interval
    memory = gib(prediction.memory_bytes) if prediction.configuration.models_memory else ABSENT
    return {
        "model": LayoutCell(text_of(row.record.row, "model"), NAMES),
        "layout": LayoutCell(prediction.configuration.setup.label),
        "step s": seconds(prediction.estimate.step_seconds),
        "80 %": f"{seconds(interval.low_seconds)}-{seconds(interval.high_seconds)}{'*' if interval.outside else ''}",
        "GiB": memory + ("!" if _lacks_memory(prediction) else ""),
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
        return dict.fromkeys(MEASURED, ABSENT)
    predicted = compared.prediction.estimate.step_seconds
    return {"measured s": seconds(compared.step_seconds), "error %": error_percent(predicted, compared.step_seconds)}
