"""The output of calibrations: the values before and after, and that the file is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from calibrate.calibration import Draft
from calibrate.cluster_file import dotted_key
from cli.output.console import console, shown_path
from conf.folders import options
from results.table import Table, text


def print_changes(new: Draft, how: str) -> None:
    """Print every number as it was and as it is now, `how` (measured or fitted), and the range of the new one."""
    rows = []
    for change in new.changes:
        if isinstance(change.after, float | int):
            within = change.lowest is not None and change.highest is not None
            span = f"{figure_text(change.lowest)} to {figure_text(change.highest)}" if within else ""
            name = dotted_key(change.path, new.cluster).removeprefix("cluster.")
            rows.append((name, figure_text(change.before), figure_text(change.after), span))
    console.print(plain_table(f"cluster/{new.output}.yaml", ("value", "was", how, "range"), rows))
    for note in new.notes:
        console.print(f"{note}.")


def write_file(new: Draft) -> Path:
    """Put the file in its place, say where that is, and return it."""
    path = new.write()
    console.print(f"Written: {shown_path(path)}")
    if new.output != new.cluster.name and new.cluster.name in options("slurm"):
        console.print(
            f"Slurm settings go by the name too: copy slurm/{new.cluster.name}.yaml to slurm/{new.output}.yaml."
        )
    return path


def changes_document(new: Draft, how: str, written: Path | None) -> dict[str, Any]:
    """Every number as it was and as it is now, for JSON. Units are those of the cluster's file.

    Args:
        how: where the new numbers come from: measured or fitted.
        written: the file; None where nothing was written.
    """
    changes = [
        {
            "key": dotted_key(change.path, new.cluster),
            "before": change.before,
            how: change.after,
            "lowest": change.lowest,
            "highest": change.highest,
        }
        for change in new.changes
        if isinstance(change.after, float | int)
    ]
    return {"cluster": new.cluster.name, "changes": changes, "notes": list(new.notes), "written": written}


def plain_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table that has a name and numbers in each row."""
    numeric = frozenset(columns[1:]) - {"pattern", "range"}
    return Table(tuple(columns), tuple(tuple(map(text, row)) for row in rows), numeric, title=title)


def figure_text(value: float | None) -> str:
    """Three significant digits, and all of a count; nothing for None."""
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else f"{value:.3g}"
