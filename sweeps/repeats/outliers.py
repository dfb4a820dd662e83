"""Points that were slower than predicted by far more than the others of their sweep: a slow node, or a slow hour."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import median

from sweeps.repeats.points import MeasuredPoint
from sweeps.steadiness import LEAST_RATIO

LEAST_POINTS = 5
"""Among fewer nobody knows how far predictions are off here."""
FARTHEST = 3.5
"""Of the modified z-score, beyond which a value is an outlier. Source: B. Iglewicz and D. C. Hoaglin, "How to Detect
and Handle Outliers" (1993), who give 0.6745 too."""
NORMAL = 0.6745
"""The median absolute deviation of normal values over their standard deviation."""


def far_from_prediction(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """The points in question. Nothing makes a machine faster than it is, so that fast ones are none of them."""
    lateness = [(point, late) for point in points if not point.disturbed and (late := _lateness(point)) is not None]
    if len(lateness) < LEAST_POINTS:
        return []
    middle = median(late for _, late in lateness)
    deviation = median(abs(late - middle) for _, late in lateness)
    bound = max(FARTHEST * deviation / NORMAL, log(LEAST_RATIO))
    return [point for point, late in lateness if late - middle > bound]


def _lateness(point: MeasuredPoint) -> float | None:
    """The logarithm of measured over predicted seconds of a step."""
    estimate = point.middle.trial.estimate
    return log(point.performance.step_seconds / estimate.step_seconds) if estimate else None
