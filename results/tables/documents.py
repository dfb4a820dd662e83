"""The answers of commands to `--json`: plain values under names that stay, which docs/json.md lists."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from results.analysis.scaling import scalings
from results.analysis.score import RowComparison, Score, group_by_table, score
from results.tables.trial_rows import POINT, TrialRow, plan_row, repeat_columns, trial_row
from sweeps.folder.journal import History
from sweeps.reading import Reading, TrialReading
from sweeps.sweep import Sweep, age_seconds, chain_metrics
from sweeps.trial import SweepRecord

TIMES = {"started": "started_unix_seconds", "ended": "ended_unix_seconds"}
"""Columns of a report whose unit a program could not guess."""


def status_document(
    sweep: Sweep,
    trials: Sequence[TrialReading],
    trainings: Sequence[Reading],
    history: History,
    excluded_nodes: Mapping[str, str],
) -> TrialRow:
    """Return the state of every trial of a sweep, and of every training that was begun from it."""
    now = time.time()
    rows = (
        row | _status_of(trial, now) | {"chosen_because": trial.trial.chosen_because} | more
        for trial, row, more in _trial_rows(sweep.record, trials)
    )
    return {
        **_sweep_values(sweep),
        "read_unix_seconds": now,
        "finished": history.finished or None,
        "is_paused": history.is_paused,
        "excluded_nodes": dict(excluded_nodes),
        "device_seconds": history.device_seconds,
        "counts": _counts(trials),
        **_apart("trials", rows),
        "trainings": [{"name": each.name} | _status_of(each, now) for each in trainings],
    }


def plan_document(record: SweepRecord) -> TrialRow:
    """The points of a sweep as predicted, in the order of its record."""
    points = (
        _row(plan_row(trial, record.plan_label_of(trial))) | {"chosen_because": trial.chosen_because}
        for trial in record.plan
    )
    return {"sweep": record.name, "question": record.spec.question, **_apart("points", points)}


def report_document(sweep: Sweep, trials: Sequence[TrialReading], files: Mapping[str, Path]) -> TrialRow:
    """Return the rows of a report's table: every trial that was measured, or was to be."""
    rows = (row | more for _, row, more in _trial_rows(sweep.record, trials))
    paths = {name: str(path) for name, path in files.items()}
    return _sweep_values(sweep) | {"counts": _counts(trials)} | _apart("trials", rows) | {"files": paths}


def score_document(comparisons: Sequence[RowComparison]) -> TrialRow:
    """Errors of predictions against the measurements of a table: by source and table, and in all."""
    tables = group_by_table(comparisons)
    return {
        "tables": [{"table": name} | _score(score(members)) for name, members in tables.items()],
        "all": _score(score(comparisons)) if comparisons else None,
    }


def _sweep_values(sweep: Sweep) -> TrialRow:
    record = sweep.record
    return {"sweep": record.name, "mode": record.mode, "folder": str(sweep.folder.path), "git_sha": record.git_sha}


def _counts(trials: Sequence[TrialReading]) -> dict[str, int]:
    return dict(Counter(trial.outcome.value if trial.outcome else "LEFT_OUT" for trial in trials))


def _trial_rows(
    record: SweepRecord, trials: Sequence[TrialReading]
) -> Iterator[tuple[TrialReading, TrialRow, TrialRow]]:
    """Each trial, the row of it that a report has, and what its point's other runs and later stages measured."""
    metrics = chain_metrics(trials)
    for trial, relation, repeats in zip(trials, scalings(trials), repeat_columns(record, trials), strict=True):
        yield trial, _row(trial_row(trial, relation)), repeats | {"metrics": metrics.get(trial.name, trial.metrics)}


def _apart(name: str, rows: Iterable[TrialRow]) -> TrialRow:
    """The rows under this name, each without what all of them have alike, which stands once, in `common`.

    A row keeps its `trial_id` even if it is the only one. No more than one whole row is held at a time, because most of
    the values of thousands of trials are equal.
    """
    common, parts = None, list[TrialRow]()
    for row in rows:
        if common is None:
            common = {key: value for key, value in row.items() if key != "trial_id"}
        for key in [key for key, value in common.items() if not _is_equal(value, row[key])]:
            value = common.pop(key)
            for part in parts:
                part[key] = value
        parts.append({key: value for key, value in row.items() if key not in common})
    return {"common": common or {}, name: parts}


def _is_equal(first: object, second: object) -> bool:
    """True if JSON writes both alike, so that 1, 1.0 and true differ, and numbers that are not known do not."""
    return first is second or (type(first) is type(second) and repr(first) == repr(second))


def _status_of(reading: Reading, now: float) -> TrialRow:
    """The values of a status, of a trial or a training, that no row of a report has."""
    submission = reading.submission
    return {
        "outcome": reading.outcome.value if reading.outcome else None,
        "cause": reading.cause,
        "age_seconds": age_seconds(reading, now),
        "num_steps_done": reading.num_steps_done,
        "num_steps": reading.num_steps,
        "executor": submission.executor if submission else None,
        "job_id": reading.job_id,
        "scheduler_state": reading.scheduler_state,
        "attempt": submission.attempt if submission else None,
        "submitted_unix_seconds": submission.submitted if submission else None,
        "failing_rank": reading.failing_rank,
        "last_log_line": reading.last_log_line,
        "log": str(reading.log) if reading.log else None,
        "quarantined": [str(path) for path in reading.damaged_files],
    }


def _row(row: TrialRow) -> TrialRow:
    """A row of a report with the point as values of its own, with units in the names of times."""
    point = {key.removeprefix(POINT): value for key, value in row.items() if key.startswith(POINT)}
    rest = {TIMES.get(key, key): value for key, value in row.items() if not key.startswith(POINT)}
    rest.pop("quarantined", None)
    return {"trial_id": rest.pop("trial_id"), "point": point, **rest}


def _score(score: Score) -> TrialRow:
    return {
        "num_steps": score.num_steps,
        "mean_absolute_step_error": score.step_error,
        "step_error_of_one_rate": score.constant_error,
        "share_of_steps_in_interval": score.inside,
        "rank_correlation": score.rank_correlation,
        "num_memories": score.num_memories,
        "mean_absolute_memory_error": score.memory_error,
        "num_fits": score.num_fits,
        "share_of_fits_right": score.fits_right,
    }
