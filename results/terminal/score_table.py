"""Scores as tables for a terminal: a line for each source and table and for all rows, and a line for each series."""

from __future__ import annotations

from collections.abc import Sequence

from conf.units import count_of
from results.score import RowComparison, Score, group_by_series, group_by_table, mean_of_series, score
from results.table import Cell, Table, breakable, text
from results.units import ABSENT
from sweeps.table.cells import text_of

COLUMNS = ("n", "step %", "constant %", "in 80 %", "rank corr.", "worst row", "memory %", "fits right")
LONGEST_WORD, PATHS = 18, " /_-"
EXPLAINING, WIDE = ("constant %", "rank corr.", "worst row"), 120
SERIES_COLUMNS = ("n", "step %", "constant %", "memory %", "fits right")
LAYOUT_COLUMNS = ("num_gpus", "tp", "pp", "micro_batch", "global_batch")


def score_table(comparisons: Sequence[RowComparison], width: int = WIDE) -> Table:
    """Errors of predictions against the measurements of the rows, by source and table, and in all.

    Args:
        width: columns of the terminal; a narrow one is spared what explains the errors, so that names of tables can be
            read.
    """
    explained = (
        " constant %: the step error of the one rate per device that suits these rows best. rank corr.: Spearman's, of"
        " steps per second. worst row: GPUs tp pp micro-batch batch."
        if width >= WIDE
        else ""
    )
    columns = [name for name in COLUMNS if width >= WIDE or name not in EXPLAINING]
    groups = group_by_table(comparisons)
    rows = [(breakable(name, PATHS), *_select_cells(members, columns)) for name, members in groups.items()]
    has_total = len(groups) > 1
    if has_total:
        rows.append((text("in all"), *_select_cells(comparisons, columns)))
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
    """The score of all rows in a sentence, which a terminal shows last."""
    overall = score(comparisons)
    parts = [f"steps are off by {_percent(overall.step_error)} % in the mean of {count_of(overall.num_steps, 'row')}"]
    if overall.inside is not None:
        parts.append(f"{_percent(overall.inside)} % within the interval in which 80 % are expected")
    if overall.memory_error is not None:
        parts.append(f"memory by {_percent(overall.memory_error)} % of {overall.num_memories}")
    if overall.fits_right is not None:
        parts.append(f"{_percent(overall.fits_right)} % of {overall.num_fits} rightly said to fit or not")
    return f"In all: {', '.join(parts)}."


def _select_cells(comparisons: Sequence[RowComparison], columns: Sequence[str]) -> list[Cell]:
    cells = dict(zip(COLUMNS, _cells(score(comparisons)), strict=True))
    return [text(cells[name]) for name in columns]


def series_table(comparisons: Sequence[RowComparison]) -> Table | None:
    """The same errors by series, and the mean in which every series counts once; None where there are no series."""
    mean = mean_of_series(comparisons)
    if mean is None:
        return None
    rows = [
        (text(name), *_select_cells(members, SERIES_COLUMNS)) for name, members in group_by_series(comparisons).items()
    ]
    shares = (mean.step_error, mean.constant_error, mean.memory_error)
    fits = ABSENT if mean.fits_right is None else f"{_percent(mean.fits_right)} %"
    rows.append(tuple(map(text, (f"mean of {mean.num_series} series", "", *map(_percent, shares), fits))))
    return Table(
        ("series", *SERIES_COLUMNS),
        tuple(rows),
        frozenset(SERIES_COLUMNS),
        title="By series",
        caption="A series is one model on one machine. The mean counts each of them once, however many rows it has.",
        least_name_width=LONGEST_WORD,
    )


def _cells(score: Score) -> tuple[str, ...]:
    return (
        str(score.num_steps),
        _percent(score.step_error),
        _percent(score.constant_error),
        _percent(score.inside),
        ABSENT if score.rank_correlation is None else f"{score.rank_correlation:.2f}",
        _worst(score.worst),
        ABSENT if score.memory_error is None else f"{_percent(score.memory_error)} of {score.num_memories}",
        ABSENT if score.fits_right is None else f"{_percent(score.fits_right)} % of {score.num_fits}",
    )


def _worst(one: RowComparison | None) -> str:
    if one is None or one.step_error is None:
        return ABSENT
    # Spreadsheets like to write a whole number as 8.0.
    layout = " ".join(text_of(one.row, column).removesuffix(".0") for column in LAYOUT_COLUMNS)
    return f"{100 * one.step_error:+.1f} %: " + f"{text_of(one.row, 'model')} {layout}".strip()


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{100 * share:.1f}"
