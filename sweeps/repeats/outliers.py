"""Points that were slower than predicted by far more than the others of their sweep: a slow node, or a slow hour."""

from __future__ import annotations

from collections.abc import Sequence

from sweeps.repeats.points import MeasuredPoint
from sweeps.repeats.ranking import lateness
from sweeps.steadiness import late_ones


def far_from_prediction(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    known = [(point, late) for point in points if not point.disturbed and (late := lateness(point.middle)) is not None]
    flags = late_ones([late for _, late in known])
    return [point for (point, _), is_late in zip(known, flags, strict=True) if is_late]
