"""Columns that say how often a point was measured and how sure its time is; the same for all of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweeps.reading import TrialReading, disturbances
from sweeps.repeats.points import MeasuredPoint, measured_points, places

NAMES = (
    "num_runs",
    "is_middle_run",
    "place",
    "point_step_seconds",
    "step_seconds_low",
    "step_seconds_high",
    "interval_method",
)


def repeat_columns(results: Sequence[TrialReading]) -> list[dict[str, Any]]:
    """For every result, in order: `is_middle_run` marks the trial whose numbers stand for its point in a ranking."""
    points, disturbed = measured_points(results), disturbances(results)
    placed = zip(points, places(points), strict=True)
    known = {run.trial.trial_id: (point, place) for point, place in placed for run in point.runs}
    return [
        _columns(result, *known.get(result.trial.trial_id, (None, "")))
        | {"disturbed": disturbed.get(result.trial.trial_id)}
        for result in results
    ]


def _columns(result: TrialReading, point: MeasuredPoint | None, place: str) -> dict[str, Any]:
    columns: dict[str, Any] = {"repeat": result.trial.repeat} | dict.fromkeys(NAMES)
    if point is None:
        return columns
    return columns | {
        "num_runs": len(point.runs),
        "is_middle_run": result.trial.trial_id == point.middle.trial.trial_id,
        "place": place or None,
        "point_step_seconds": point.performance.step_seconds,
        "step_seconds_low": point.seconds.low,
        "step_seconds_high": point.seconds.high,
        "interval_method": point.seconds.method,
    }
