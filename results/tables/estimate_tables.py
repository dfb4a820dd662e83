"""Rows of a table of configurations as they were priced, beside what they measured, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conf.errors import ConfigError
from conf.units import count_of
from results.analysis.score import RowComparison, comparison, group_by_table, score
from results.render.table import Cell, Table, breakable, text
from results.render.units import ABSENT, error_percent, gib, percent, seconds
from sweeps.table.cells import text_of
from sweeps.table.prices import PricedRow, RowPrediction

WIDE = 100
MEASURED = ("measured s", "error %")
MOST_SAID = 3
PRICED_COLUMNS = ("line", "model", "layout", "step s", "80 %", "GiB", *MEASURED)
PATHS = " /_-"

Cells = Mapping[str, Cell]

SCORE_COLUMNS = ("n", "step %", "constant %", "in 80 %", "rank corr.", "worst row", "memory %", "fits right")
LONGEST_WORD = 18
EXPLAINING, WIDE_SCORE = ("constant %", "rank corr.", "worst row"), 120
EXPLANATION = (
    " constant %: the step error of the one rate per device that suits these rows best. rank corr.: Spearman's, of"
    " steps per second. worst row: GPUs tp pp micro-batch batch."
)
LAYOUT_COLUMNS = ("num_gpus", "tp", "pp", "micro_batch", "global_batch")


def priced_table(rows: Sequence[PricedRow], width: int) -> Table:
    """The rows that were priced, by their lines in the file; the step and its error where a row has measured one."""
    priced = [(row, row.prediction) for row in rows if row.prediction]
    cells = [
        {"line": text(row.record.line), **_predicted_cells(row, prediction), **_measured_cells(row)}
        for row, prediction in priced
    ]
    # Those that say something of these rows, and for which there is room.
    is_measured = any(row["error %"].text != ABSENT for row in cells)
    has_models = any(row["model"].text for row in cells)
    left_out = {*(() if is_measured else MEASURED), *(() if has_models and width >= WIDE else ("model",))}
    columns = [name for name in PRICED_COLUMNS if name not in left_out]
    return Table(
        tuple(columns),
        tuple(tuple(row[name] for name in columns) for row in cells),
        frozenset(columns) - {"model", "layout"},
        title="Predicted, not measured, of each row",
        caption=" ".join(_notes([prediction for _, prediction in priced])),
    )


def _notes(priced: Sequence[RowPrediction]) -> list[str]:
    """The meaning of the interval, and of the marks that occur."""
    notes = ["80 %: where four measurements of five are expected."]
    said = list(dict.fromkeys(prediction.in_words for prediction in priced))
    notes += [*said[:MOST_SAID], *(["More is said with --json."] if len(said) > MOST_SAID else [])]
    if any(prediction.interval.outside for prediction in priced):
        notes.append("*: outside of what was validated, on the sides that column pred_outside of --out names.")
    if any(_lacks_memory(prediction) for prediction in priced):
        notes.append("!: more memory than the device has.")
    return notes


def _predicted_cells(row: PricedRow, prediction: RowPrediction) -> Cells:
    interval = prediction.interval
    memory = gib(prediction.memory_bytes) if prediction.configuration.models_memory else ABSENT
    return {
        "model": breakable(text_of(row.record.row, "model"), PATHS),
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


def score_table(comparisons: Sequence[RowComparison], width: int = WIDE_SCORE) -> Table:
    """Errors of predictions against the measurements of the rows, by source and table, and in all."""
    explained = EXPLANATION if width >= WIDE_SCORE else ""  # a narrow one is spared it, so that names can be read
    columns = [name for name in SCORE_COLUMNS if width >= WIDE_SCORE or name not in EXPLAINING]
    groups = group_by_table(comparisons)
    rows = [(breakable(name, PATHS), *_score_cells(members, columns)) for name, members in groups.items()]
    has_total = len(groups) > 1
    if has_total:
        rows.append((text("in all"), *_score_cells(comparisons, columns)))
    return Table(
        ("table", *columns),
        tuple(rows),
        frozenset(columns) - {"worst row"},
        title="Predicted against measured",
        caption="step %, memory %: mean of absolute errors. in 80 %: steps within the interval of their prediction."
        + explained,
        num_totals=int(has_total),
        least_name_width=LONGEST_WORD,
    )


def score_in_all(comparisons: Sequence[RowComparison]) -> str:
    overall = score(comparisons)
    parts = [f"steps are off by {percent(overall.step_error)} % in the mean of {count_of(overall.num_steps, 'row')}"]
    if overall.inside is not None:
        parts.append(f"{percent(overall.inside)} % within the interval in which 80 % are expected")
    if overall.memory_error is not None:
        parts.append(f"memory by {percent(overall.memory_error)} % of {overall.num_memories}")
    if overall.fits_right is not None:
        parts.append(f"{percent(overall.fits_right)} % of {overall.num_fits} rightly said to fit or not")
    return f"In all: {', '.join(parts)}."


def _score_cells(comparisons: Sequence[RowComparison], columns: Sequence[str]) -> list[Cell]:
    one = score(comparisons)
    correlation, fits_right = one.rank_correlation, one.fits_right
    cells = {
        "n": str(one.num_steps),
        "step %": percent(one.step_error),
        "constant %": percent(one.constant_error),
        "in 80 %": percent(one.inside),
        "rank corr.": ABSENT if correlation is None else f"{correlation:.2f}",
        "worst row": _worst_row_text(one.worst),
        "memory %": ABSENT if one.memory_error is None else f"{percent(one.memory_error)} of {one.num_memories}",
        "fits right": ABSENT if fits_right is None else f"{percent(fits_right)} % of {one.num_fits}",
    }
    return [text(cells[name]) for name in columns]


def _worst_row_text(one: RowComparison | None) -> str:
    if one is None or one.step_error is None:
        return ABSENT
    # Spreadsheets like to write a whole number as 8.0.
    layout = " ".join(text_of(one.row, column).removesuffix(".0") for column in LAYOUT_COLUMNS)
    return f"{100 * one.step_error:+.1f} %: " + f"{text_of(one.row, 'model')} {layout}".strip()
