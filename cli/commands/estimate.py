"""`trisweep estimate`: price a table of configurations, and score the prices against what the table measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import track

from cli.command_line.arguments import AsJson
from cli.output.console import complaints, console, leave_stdout_to_json, print_json
from conf.errors import EXIT_FAILED, ConfigError

if TYPE_CHECKING:
    from results.score import Comparison
    from sweeps.table.file import Record
    from sweeps.table.prices import PricedRow

TRAINERS = "trisweep, megatron-lm, megatron-deepspeed, megatron-core, fsdp, torchtitan, deepspeed"
"""Those of `train_core.costs`, written out because importing that takes longer than to answer `--help`."""
MANY_ROWS = 200
MOST_UNREADABLE = 5
MOST_REASONS = 5


def estimate(
    csv: Annotated[Path, typer.Option("--csv", help="A table of configurations, one a row (docs/estimate.md).")],
    out: Annotated[Path, typer.Option("--out", help="Where to write the table with its predictions.")],
    score: Annotated[
        bool, typer.Option("--score", help="Hold the predictions against the table's measurements.")
    ] = False,
    implementation: Annotated[str | None, typer.Option(help=f"The trainer to price for: {TRAINERS}.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict time and memory of every row of a table of configurations, without devices.

    Exit code 1: no row could be priced.
    """
    from sweeps.table.file import misspelt_columns, read_table, write_table
    from sweeps.table.prices import price
    from train_core.costs import IMPLEMENTATIONS

    if implementation is not None and implementation not in IMPLEMENTATIONS:
        known = f"Known: {', '.join(IMPLEMENTATIONS)}."
        raise ConfigError("implementation", implementation, "is not a trainer known here", known)
    if as_json:
        leave_stdout_to_json()
    table = read_table(csv)
    rows = price(_told(table.records), implementation)
    write_table(out, table.columns, [row.cells() for row in rows])
    console.print(_summary(rows))
    _print_reasons(rows)
    for column, meant in misspelt_columns(table.columns):
        console.print(f"Column {column} was not read: did you mean {meant}?")
    console.print(f"Predicted, not measured: {out}")
    compared = _print_scores(rows) if score else []
    if as_json:
        print_json("estimate", _document(rows, out, compared if score else None))
    if all(row.prediction is None for row in rows):
        raise typer.Exit(EXIT_FAILED)


def _told(records: Sequence[Record]) -> Iterable[Record]:
    """The rows; a terminal is shown how many are priced, as thousands take a minute."""
    shown = complaints.is_terminal and len(records) > MANY_ROWS
    return track(records, "Pricing rows", console=complaints, transient=True, disable=not shown)


def _document(rows: Sequence[PricedRow], out: Path, compared: Sequence[Comparison] | None) -> dict[str, Any]:
    from results.documents import score_document

    refused = [{"line": line, "reason": reason} for line, reason in _refused(rows)]
    counts = {"num_rows": len(rows), "num_priced": len(rows) - len(refused), "not_priced": refused}
    return counts | {"predictions": str(out), "score": None if compared is None else score_document(compared)}


def _summary(rows: Sequence[PricedRow]) -> str:
    priced = sum(row.prediction is not None for row in rows)
    rest = f"; {len(rows) - priced} not: see column reason" if priced < len(rows) else ""
    return f"{priced} of {len(rows)} rows priced{rest}"


def _print_reasons(rows: Sequence[PricedRow]) -> None:
    """Say why the first few rows were not priced. Lines are counted as an editor does: the header is line 1."""
    refused = _refused(rows)
    for line, reason in refused[:MOST_REASONS]:
        console.print(f"  line {line}: {reason}")
    if len(refused) > MOST_REASONS:
        console.print(f"  ... and {len(refused) - MOST_REASONS} more.")


def _refused(rows: Sequence[PricedRow]) -> list[tuple[int, str]]:
    return [(line, row.reason) for line, row in enumerate(rows, start=2) if row.prediction is None]


def _print_scores(rows: Sequence[PricedRow]) -> list[Comparison]:
    """Print the scores, and return the rows that they are about."""
    from results.score_table import score_in_all, score_table, series_table

    # A figure that somebody only remembers is no test of a prediction.
    confirmed = [row for row in rows if row.record.row.get("confirmed", "").strip().lower() != "no"]
    compared, unreadable = _compared(confirmed)
    console.print(score_table(compared, console.width) if compared else "No row that was priced holds a measurement.")
    by_series = series_table(compared)
    if by_series is not None:
        console.print(by_series)
    if len(confirmed) < len(rows):
        console.print(f"{len(rows) - len(confirmed)} rows with confirmed=no are left out.")
    for message in unreadable[:MOST_UNREADABLE]:
        console.print(f"Left out: {message}")
    if len(unreadable) > MOST_UNREADABLE:
        console.print(f"... and {len(unreadable) - MOST_UNREADABLE} more rows whose measurements cannot be read.")
    if compared:
        console.print(score_in_all(compared))
    return compared


def _compared(rows: Sequence[PricedRow]) -> tuple[list[Comparison], list[str]]:
    """Rows beside their measurements, and what is wrong with measurements that cannot be read."""
    from results.score import comparison

    compared: list[Comparison] = []
    unreadable: list[str] = []
    for row in rows:
        try:
            found = comparison(row)
        except ConfigError as error:
            # One cell that is not a number must not cost the score of a table with thousands of rows.
            unreadable.append(str(error))
            continue
        compared += [found] if found else []
    return compared, unreadable
