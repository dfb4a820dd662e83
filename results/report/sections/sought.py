"""The objectives of a sweep over its axes: a table of its points, the metric over each axis, and the losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from conf.compose.tree import PARAMS
from conf.types.schema import Value
from conf.types.sweep_spec import Objective, own_figure
from conf.units import count_of
from results.analysis.findings.objective import aside_sentence, value_text, words_of
from results.analysis.findings.ranking import sought_cells
from results.analysis.knobs.sensitivity import EQUAL, FEWEST_POINTS
from results.analysis.knobs.sensitivity import SEED as SAME_DRAW
from results.render.charts import Spec, category, dots, layer, quantity, tooltip
from results.render.section import Block, NamedTable, Paragraph, Plot, ReportSubject, Section
from results.render.table import Table, number, text
from results.render.units import percent
from sweeps.labels import dotted_value
from sweeps.points.objectives import is_better_when_larger
from sweeps.ranking.points import MeasuredPoint, places, sought_points
from sweeps.search.axes.seen_points import SEED
from sweeps.trial import SweepRecord

INTERVAL = "95 %"
MOST_TICKS = 8
LOGARITHMIC = 9.0
"""An axis whose largest value is so many times the smallest is drawn logarithmically."""
MOST_CURVES = 16


def section(subject: ReportSubject) -> Section | None:
    """Return the section, or None if the sweep seeks the fastest plan, or nothing was measured."""
    record = subject.sweep.record
    points = [] if record.seeks_rate else sought_points(record, subject.results)
    if not points:
        return None
    counted = f"{count_of(len(points), 'point')} in {sum(len(point.runs) for point in points)} runs"
    finding = f"{counted}, ranked by {' and '.join(words_of(objective) for objective in record.objective)}."
    return Section("sought", "Every point", "measured", finding, tuple(_blocks(record, points)))


def _blocks(record: SweepRecord, points: Sequence[MeasuredPoint]) -> Iterator[Block]:
    yield NamedTable("sought-points", _table(record, points))
    if said := aside_sentence({point.name: point.aside for point in points}):
        yield Paragraph(said, is_caution=True)
    yield from _axis_blocks(record, [point for point in points if not point.aside])
    curved = "loss" if "loss" in record.objective else next(filter(None, map(own_figure, record.objective)), None)
    if curved is not None:
        yield _curves(points, curved)
        if len(points) > MOST_CURVES:
            yield Paragraph(f"The curves are of the best {MOST_CURVES} points.", is_note=True)


def _axis_blocks(record: SweepRecord, points: Sequence[MeasuredPoint]) -> Iterator[Block]:
    axes = sorted({key for point in points for key in point.reading.trial.point} - {SEED})
    sound = [point for point in points if not point.diverged]
    left_out = len(points) - len(sound)
    for key in axes:
        values = {_value(point, key) for point in sound}
        # Something can be drawn over a number with several values.
        if len(values) > 1 and all(isinstance(each, int | float) and not isinstance(each, bool) for each in values):
            yield _axis_plot(record, sound, key, left_out)
    varied = [key for key in axes if len({_value(point, key) for point in points}) > 1]
    if len(varied) > 1:
        yield _coordinates(record, points, varied)
        yield from _shares(record, points, varied)


def _table(record: SweepRecord, points: Sequence[MeasuredPoint]) -> Table:
    heads = (*map(words_of, record.objective), INTERVAL, "runs", "step s")
    rows = []
    for position, (place, point) in enumerate(zip(places(points), points, strict=True), start=1):
        named = {"#": number(place, -position if place else None), "point": text(point.name)}
        rows.append(named | dict(zip(heads, sought_cells(point), strict=True)))
    marked = [position for position, point in enumerate(points) if point.on_front]
    return Table.of(rows, marked).without_empty_columns()


def _value(point: MeasuredPoint, key: str) -> Value:
    return dotted_value(point.reading.planned, key)


def _axis_plot(record: SweepRecord, points: Sequence[MeasuredPoint], key: str, num_diverged: int) -> Plot:
    """Every point that did not diverge, with its interval, over one axis; the line joins the best at each value."""
    objective, values = record.objective[0], sorted({float(str(_value(point, key))) for point in points})
    plan = record.spec.proxy if record.mode == "proxy" and record.spec.proxy else record.spec
    is_declared = any(block.axes[key].log for block in plan.blocks if key in block.axes)
    is_log = values[0] > 0 and (values[-1] > LOGARITHMIC * values[0] or is_declared)
    scale = {"type": "log"} if is_log else {"zero": False}
    name = key.removeprefix(PARAMS)
    x = quantity("setting", name) | {
        "scale": scale,
        "axis": {"values": values, "format": ".6~g"} if len(values) <= MOST_TICKS else {},
    }
    title = f"measured {words_of(objective)}"
    ends = {end for point in points for end in (point.values[0], *point.bounds)}
    # One wide interval would flatten all other points.
    y_scale = {"type": "log"} if 0 < LOGARITHMIC * min(ends) < max(ends) else {"zero": False}
    # The tick of an axis from a value to itself is rounded to a whole number, unless its digits are given.
    y = quantity("value", title, scale=y_scale, axis={"format": ".4~g"} if len(ends) == 1 else {})
    best = "max" if is_better_when_larger(objective) else "min"
    rows = [
        {
            "setting": _value(point, key),
            "value": point.values[0],
            "low": point.bounds[0],
            "high": point.bounds[1],
            "point": point.name,
        }
        for point in points
    ]
    spec: Spec = {
        "data": {"values": rows},
        "height": 260,
        "layer": [
            layer({"type": "line"}, x=x, y=y | {"aggregate": best}),
            layer({"type": "rule"}, x=x, y=quantity("low", title), y2={"field": "high"}),
            layer(dots(70, color="var(--measured)"), x=x, y=y, tooltip=tooltip("point", "value")),
        ],
    }
    caption = f"{title.capitalize()} over {name}; the line joins the best at each value" + (
        ", whiskers are 95 % intervals, where one is known." if any(point.interval for point in points) else "."
    )
    if num_diverged:
        caption += f" Left out: {count_of(num_diverged, 'point')} that diverged."
    return Plot(f"over-{key.replace('.', '-')}", caption, spec)


def _coordinates(record: SweepRecord, points: Sequence[MeasuredPoint], axes: Sequence[str]) -> Plot:
    """A line for each point through its place on every axis; the places are those of its values in their order."""
    objective = record.objective[0]
    columns = [*axes, words_of(objective)]
    places: dict[str, dict[str, float]] = {}
    for column in columns:
        distinct = sorted({_axis_value(point, column, objective) for point in points}, key=_sort_key)
        places[column] = {str(value): place / max(1, len(distinct) - 1) for place, value in enumerate(distinct)}
    rows = [
        {
            "point": point.name,
            "axis": column.removeprefix(PARAMS),
            "place": places[column][str(_axis_value(point, column, objective))],
            "value": str(_axis_value(point, column, objective)),
            "rank": rank,
        }
        for rank, point in enumerate(points, start=1)
        for column in columns
    ]
    ends = {"values": [1, len(points)], "format": "d"}
    spec: Spec = {
        "data": {"values": rows},
        "height": 280,
        "mark": {"type": "line", "point": {"color": "var(--measured)"}, "color": "var(--measured)"},
        "encoding": {
            "x": category("axis", sort=[column.removeprefix(PARAMS) for column in columns], axis={"labelAngle": 0}),
            "y": quantity("place", "values in their order", axis={"labels": False}),
            "detail": {"field": "point"},
            # By strength and not by hue: a colour between two is one of a theme, and would not follow the page's.
            "opacity": quantity("rank", "rank", scale={"range": [1.0, 0.25]}, legend=ends),
            "tooltip": tooltip("point", "axis", "value"),
        },
    }
    caption = f"Every point as a line through its values, ordered on each axis, to the measured {words_of(objective)}."
    return Plot("sought-coordinates", caption, spec)


def _shares(record: SweepRecord, points: Sequence[MeasuredPoint], axes: Sequence[str]) -> Iterator[Block]:
    """Yield the share of the differences that each axis explains alone; nothing of points that cannot tell."""
    finite = [point for point in points if math.isfinite(point.values[0])]
    if len(finite) < max(FEWEST_POINTS, 2 * len(axes)):
        return
    measured = np.array([point.values[0] for point in finite])
    # No tree has anything to split then, and fANOVA divides by what they split.
    if math.isclose(measured.min(), measured.max(), rel_tol=EQUAL):
        return
    from results.analysis.knobs.forest import fanova_shares  # importing it takes seconds

    values = [sorted({_value(point, key) for point in finite}, key=_sort_key) for key in axes]
    both = list(zip(axes, values, strict=True))
    codes = np.array([[levels.index(_value(point, key)) for key, levels in both] for point in finite], dtype=float)
    shares = fanova_shares(codes, measured, list(map(len, values)), SAME_DRAW)
    named = sorted(zip(shares, axes, strict=True), reverse=True)
    listed = ", ".join(f"{key.removeprefix(PARAMS)} {percent(share)} %" for share, key in named)
    what = f"{words_of(record.objective[0])} of {len(finite)} points"
    yield Paragraph(f"Which axis mattered, as its share of the differences in {what} (fANOVA): {listed}.", is_note=True)


def _axis_value(point: MeasuredPoint, column: str, objective: Objective) -> Value:
    return point.values[0] if column == words_of(objective) else _value(point, column)


def _sort_key(value: Value) -> tuple[str, float, str]:
    is_number = isinstance(value, int | float)
    return (
        "" if is_number else "text",
        float(str(value)) if is_number and not isinstance(value, bool) else 0.0,
        str(value),
    )


def _curves(points: Sequence[MeasuredPoint], name: str) -> Plot:
    """The training loss, or another figure, of the first run of each point over its steps.

    Those that diverged are drawn as far as any other goes.
    """
    shown = points[:MOST_CURVES]
    sound = [loss for point in shown if not point.diverged for _, loss in _curve(point, name)]
    # Beside a loss of 1e17, every other would lie on the axis.
    top = max(
        sound or [point_losses[0][1] for point in shown if (point_losses := _curve(point, name))], default=math.inf
    )
    rows = [
        {"point": point.name, "step": step, "loss": loss}
        for point in shown
        for step, loss in _curve(point, name)
        if loss <= top
    ]
    is_cut = any(loss > top for point in shown for _, loss in _curve(point, name))
    x = quantity("step", "step", axis={"tickMinStep": 1})
    what = "training loss" if name == "loss" else name
    y = quantity("loss", f"measured {what}", scale={"zero": False})
    names = category("point", sort=[point.name for point in shown])
    spec: Spec = {
        "data": {"values": rows},
        "height": 280,
        **layer({"type": "line"}, x=x, y=y, color=names, tooltip=tooltip("point", "step", "loss")),
    }
    cut = f" Of those that diverged, losses above {value_text('loss', top)} are left out." if is_cut else ""
    return Plot("sought-losses", f"Measured {what} of every point, by its first run.{cut}", spec)


def _curve(point: MeasuredPoint, name: str) -> list[tuple[int, float]]:
    """The steps of its first run with their losses, or another figure, as far as these are numbers."""
    if name != "loss":
        told = ((step.step, step.figures.get(name, math.nan)) for step in point.reading.steps)
        return [(step, value) for step, value in told if math.isfinite(value)]
    performance = point.reading.performance
    if performance is None:
        return []
    both = zip(performance.recorded_steps, performance.losses, strict=False)
    return [(step, loss) for step, loss in both if math.isfinite(loss)]
