"""Rows of a table of configurations that somebody measured, as trials to fit to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from calibrate.refit_cluster import FinishedTrial
from conf.errors import ConfigError, UsageError
from conf.units import count_of
from results.score import comparison
from sweeps.table.file import read_table
from sweeps.table.headers import unread_sentence
from sweeps.table.prices import PricedRow, price


@dataclass(frozen=True)
class MeasuredTable:
    """The rows of one cluster.

    Attributes:
        notes: what was left out or not read, and why.
    """

    cluster: str
    trials: tuple[FinishedTrial, ...]
    notes: tuple[str, ...]


def measured_table(path: Path, cluster: str | None) -> MeasuredTable:
    """The rows that hold a measured step.

    Args:
        cluster: the one whose rows are taken; None takes the only one that the table names.

    Raises:
        UsageError: there is no such table, none of its rows can be used, or it is not said which cluster's are meant.
    """
    table = read_table(path)
    (usable, refused), unread = _trials(price(table.records)), unread_sentence(table.columns)
    clusters = sorted({name for name, _ in usable})
    if not usable:
        first = refused[0] if refused else unread
        because = f": {first.removesuffix('.')}" if first else ""
        problem = f"No row of {path} holds a measured step that can be priced{because}"
        raise UsageError(problem, "Give iter_time_s, or a rate, beside the columns of docs/estimate.md.")
    if cluster is None and len(clusters) > 1:
        raise UsageError(f"{path} has rows of {', '.join(clusters)}", "Name one of them, such as cluster=NAME.")
    chosen = cluster or clusters[0]
    trials = tuple(trial for name, trial in usable if name == chosen)
    if not trials:
        problem = f"No row of {path} is of cluster {chosen}; its rows are of {', '.join(clusters)}"
        raise UsageError(problem, "Name the cluster in a column `cluster`, or choose one of those.")
    return MeasuredTable(chosen, trials, _notes(len(usable) - len(trials), refused, unread))


def _trials(rows: Sequence[PricedRow]) -> tuple[list[tuple[str, FinishedTrial]], list[str]]:
    """The rows that can be used, each with its cluster, and why others cannot."""
    usable, refused = [], []
    for row in rows:
        line = row.record.line
        try:
            compared = comparison(row)
        except ConfigError as error:
            refused.append(f"line {line}: {error}")
            continue
        if row.prediction is None:
            refused.append(f"line {line}: {row.reason}")
        elif compared is not None and compared.step_seconds is not None:
            configuration, seconds = row.prediction.configuration, compared.step_seconds
            setup, kind = configuration.setup, configuration.implementation
            usable.append((setup.cluster.name, FinishedTrial(setup.label, setup, seconds, None, True, kind)))
    return usable, refused


def _notes(num_elsewhere: int, refused: Sequence[str], unread: str | None) -> tuple[str, ...]:
    notes = [f"Left out: {count_of(num_elsewhere, 'row')} of other clusters"] if num_elsewhere else []
    if refused:
        notes.append(f"Left out: {count_of(len(refused), 'row')}, the first because of {refused[0].removesuffix('.')}")
    if unread is not None:
        notes.append(unread.removesuffix("."))
    return tuple(notes)
