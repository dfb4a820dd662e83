"""`trisweep estimate`: price a table of configurations, and score the prices against what the table measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import track

from cli.arguments import TRAINERS, AsJson
from cli.output.console import complaints, console, print_json
from conf.errors import EXIT_FAILED, ConfigError
from conf.grouped import grouped
from conf.units import count_of

if TYPE_CHECKING:
    from results.analysis.score import RowComparison
    from sweeps.table.prices import PricedRow

MANY_ROWS = 200
MOST_UNUSABLE = 5
MOST_REASONS = 5


def estimate(
    table: Annotated[Path, typer.Argument(help="A CSV file of configurations, one a row (docs/estimate.md).")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the table with its predictions here, in place of showing them.")
    ] = None,
    score: Annotated[
        bool, typer.Option("--score", help="Hold the predictions against the table's measurements.")
    ] = False,
    implementation: Annotated[str | None, typer.Option(help=f"The trainer to price for: {TRAINERS}.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict time and memory of every row of a table of configurations, without devices.

    Exit code 1: no row could be priced.
    """
    from results.tables.estimate_tables import priced_table, score_in_all
    from sweeps.planner.request import implementation_called
    from sweeps.table.prices import price, read_table, unread_sentence, write_table

    if implementation is not None:
        implementation_called(implementation)
    read = read_table(table)
    # Thousands of rows take a minute, so that a terminal shows how many are priced.
    is_slow = complaints.is_terminal and len(read.records) > MANY_ROWS
    records = track(read.records, "Pricing rows", console=complaints, transient=True, disable=not is_slow)
    rows = price(records, implementation)
    if out is not None:
        write_table(out, read.columns, [row.cells() for row in rows])
    num_priced = sum(row.prediction is not None for row in rows)
    if num_priced and out is None and not as_json:
        console.print(priced_table(rows, console.width))
    rest = f"; {len(rows) - num_priced} not{': see column reason' if out else ''}" if num_priced < len(rows) else ""
    counted = f"{num_priced} of {count_of(len(rows), 'row')} priced{rest}"
    console.print(counted if rows else f"{table} has no row below its headings: nothing to price.")
    _print_reasons(rows, MOST_REASONS if out else len(rows))
    if sentence := unread_sentence(read.columns):
        console.print(sentence)
    if out is not None:
        console.print(f"Predicted, not measured: {out}")
    compared, unusable, doubts = _comparisons(rows)
    if score:
        _print_scores(rows, compared)
    if score or out is None:
        _print_unusable(unusable)
    for line, doubt in list(doubts.items())[:MOST_UNUSABLE]:
        console.print(f"line {line}: {doubt}. The row may recompute otherwise than it says.")
    if score and compared:
        console.print(score_in_all(compared))
    if as_json:
        print_json("estimate", _document(rows, out, compared if score else None, doubts))
    if not num_priced:
        raise typer.Exit(EXIT_FAILED)


def _document(
    rows: Sequence[PricedRow],
    out: Path | None,
    compared: Sequence[RowComparison] | None,
    doubts: Mapping[int, str],
) -> dict[str, Any]:
    from results.tables.documents import score_document

    refused = [{"line": line, "reason": reason} for line, reason in _unpriced_lines(rows)]
    counts = {"num_rows": len(rows), "num_priced": len(rows) - len(refused), "not_priced": refused}
    priced = [_row_document(row) | {"doubt": doubts.get(row.record.line)} for row in rows if row.prediction]
    files = {"predictions": None if out is None else str(out), "rows": priced}
    return counts | files | {"score": None if compared is None else score_document(compared)}


def _row_document(row: PricedRow) -> dict[str, Any]:
    prediction = row.prediction
    assert prediction is not None
    interval, models_memory = prediction.interval, prediction.configuration.models_memory
    return {
        "line": row.record.line,
        "predicted_step_seconds": prediction.estimate.step_seconds,
        "predicted_low_step_seconds": interval.low_seconds,
        "predicted_high_step_seconds": interval.high_seconds,
        "predicted_peak_memory_bytes": prediction.memory_bytes if models_memory else None,
        "fits": prediction.fits if models_memory else None,
        "outside": list(interval.outside),
        "runs_take": interval.in_words,
    }


def _print_reasons(rows: Sequence[PricedRow], most: int) -> None:
    """Say why rows were not priced, those with one reason together. An editor's line 1 is the header."""
    lines = grouped(_unpriced_lines(rows), lambda unpriced: unpriced[1])
    for reason, ((first, _), *others) in list(lines.items())[:most]:
        console.print(f"  line {first}{f' and {len(others)} more' if others else ''}: {reason}")
    if num_others := sum(len(numbers) for numbers in list(lines.values())[most:]):
        console.print(f"  ... and {count_of(num_others, 'row')} for other reasons.")


def _unpriced_lines(rows: Sequence[PricedRow]) -> list[tuple[int, str]]:
    return [(row.record.line, row.reason) for row in rows if row.prediction is None]


def _comparisons(rows: Sequence[PricedRow]) -> tuple[list[RowComparison], list[str], dict[int, str]]:
    """The rows beside what they measured, why some cannot be used, and by line what is doubted of others."""
    from results.analysis.score import comparison, is_allocated
    from sweeps.table.recompute_check import recompute_doubt

    compared: list[RowComparison] = []
    unusable: list[str] = []
    doubts: dict[int, str] = {}
    for row in filter(_is_confirmed, rows):
        try:
            if beside := comparison(row):
                compared.append(beside)
                held, is_part = beside.memory_bytes, is_allocated(beside.row)
                if held and (doubt := recompute_doubt(beside.prediction, held, is_allocated=is_part)):
                    doubts[row.record.line] = doubt
        except ConfigError as error:
            # One cell that is not a number must not cost the score of a table with thousands of rows.
            unusable.append(f"line {row.record.line}: {error}")
    return compared, unusable, doubts


def _is_confirmed(row: PricedRow) -> bool:
    """False for a figure that somebody only remembers, which is no test of a prediction."""
    return row.record.row.get("confirmed", "").strip().lower() != "no"


def _print_scores(rows: Sequence[PricedRow], compared: Sequence[RowComparison]) -> None:
    from results.tables.estimate_tables import score_table

    console.print(score_table(compared, console.width) if compared else "No row that was priced holds a measurement.")
    if num_unconfirmed := sum(not _is_confirmed(row) for row in rows):
        console.print(f"Left out, with confirmed=no: {count_of(num_unconfirmed, 'row')}.")


def _print_unusable(unusable: Sequence[str]) -> None:
    for message in unusable[:MOST_UNUSABLE]:
        console.print(f"Left out: {message}")
    if len(unusable) > MOST_UNUSABLE:
        more = count_of(len(unusable) - MOST_UNUSABLE, "more row")
        console.print(f"... and {more} whose measurements cannot be used.")
