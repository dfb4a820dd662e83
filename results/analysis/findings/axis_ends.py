"""Where the best point lies at the end of an axis, so that a better one may lie beyond it; and what to try next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from conf.compose.tree import PARAMS
from conf.plan.knobs import LAYOUT_KEYS
from conf.types.axes import SweepAxis
from conf.types.schema import Value
from sweeps.labels import dotted_value
from sweeps.ranking.points import MeasuredPoint
from sweeps.search.axes.seen_points import SEED
from sweeps.trial import SweepRecord

NEAR = 0.05
"""A value of a continuous range is at its end within this share of the range."""
NUM_STEPS = 2
"""The range to try next goes so many steps on; a step of a continuous range is a quarter of it."""
LOGARITHMIC = 4.0
"""A list whose largest value is at least so many times the smallest goes on by factors."""


def end_sentences(record: SweepRecord, points: Sequence[MeasuredPoint]) -> str:
    """Which values of the first point are at the end of their axes, and the range to try next; empty if none is."""
    return " ".join(_sentences(record, points))


def _sentences(record: SweepRecord, points: Sequence[MeasuredPoint]) -> Iterator[str]:
    plan = record.spec.proxy if record.mode == "proxy" and record.spec.proxy else record.spec
    for key in sorted(plan.varied_keys - LAYOUT_KEYS - {SEED}):
        values = [dotted_value(point.reading.planned, key) for point in points]
        best = _number(values[0])
        axes = [block.axes[key] for block in plan.blocks if key in block.axes]
        if best is None or len(set(values)) < 2 or len(axes) != 1:
            continue
        if (beyond := _beyond(axes[0], best)) is not None:
            end, outer = beyond
            low, high = sorted((end, outer))
            which = "highest" if outer > end else "lowest"
            name = key.removeprefix(PARAMS)
            yield f"The best {name}, {best:.4g}, is at the {which} end of its axis: try {low:.3g} to {high:.3g} next."


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _beyond(axis: SweepAxis, best: float) -> tuple[float, float] | None:
    """The end of the axis at which the value is, and how far beyond to go; None of one between the ends."""
    listed = [number for value in axis.values or () if (number := _number(value)) is not None]
    if axis.values is not None and len(listed) < len(axis.values):
        return None  # values without order, or that follow from other keys
    values = sorted(set(listed)) or [float(axis.low or 0), float(axis.high or 0)]
    is_log = axis.log or (values[0] > 0 and bool(listed) and values[-1] >= LOGARITHMIC * values[0])
    places = [math.log(value) if is_log else value for value in values]
    if len(places) < 2 or (is_log and best <= 0):
        return None
    margin = 0.0 if listed else NEAR * (places[-1] - places[0])
    place = math.log(best) if is_log else best
    for end, neighbour in ((places[-1], places[-2]), (places[0], places[1])):
        step = (end - neighbour) if listed else (end - neighbour) / 4
        if (end - place) * math.copysign(1.0, step) <= margin:
            outer = end + NUM_STEPS * step
            at_end, beyond = (math.exp(end), math.exp(outer)) if is_log else (end, outer)
            is_share = not is_log and 0 <= values[0] <= values[-1] < 1
            return _within_limits(values, at_end, beyond, is_share=is_share)
    return None


def _within_limits(values: Sequence[float], end: float, outer: float, *, is_share: bool) -> tuple[float, float] | None:
    """The same range without what such values cannot be: a share stays below 1, and nothing falls to 0 or below."""
    if is_share and end < 1 <= outer:
        outer = (end + 1) / 2
    if values[0] >= 0 and outer <= 0:
        outer = end / 2
    if all(value.is_integer() for value in values):
        outer = max(1.0, float(round(outer)))
    return None if math.isclose(outer, end) else (end, outer)
