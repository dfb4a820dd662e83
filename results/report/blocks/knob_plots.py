"""Plots of which knob mattered."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

from conf.grouped import grouped
from conf.units import TERA
from results.knobs.sensitivity import Interaction, Sensitivity
from results.knobs.table import KnobColumn, KnobTable, setting_text
from results.report.blocks.charts import category, quantity
from results.report.section import Plot
from results.units import percent

MOST_PANELS = 6
BAR_STEP = 26
CELL_STEP = 80


def shares_plot(sensitivity: Sensitivity) -> Plot:
    """A bar for each knob, with the range of four draws of five."""
    values = [
        {
            "knob": effect.column.words,
            "share": round(100 * effect.share, 2),
            "low": round(100 * effect.low, 2),
            "high": round(100 * effect.high, 2),
        }
        for effect in sensitivity.effects
    ]
    order = [value["knob"] for value in values]
    bar = {
        "mark": {"type": "bar", "color": f"var(--{sensitivity.rates_are})"},
        "encoding": {"x": quantity("share", "share %")},
    }
    line = {
        "mark": {"type": "rule", "strokeWidth": 2, "color": "var(--ink)"},
        "encoding": {"x": quantity("low", "share %"), "x2": {"field": "high"}},
    }
    spec: dict[str, Any] = {
        "data": {"values": values},
        "height": {"step": BAR_STEP},
        "encoding": {"y": category("knob", sort=order)},
        "layer": [bar, line],
    }
    caption = (
        f"How much of the differences between {sensitivity.rates_are} rates each knob explains, with the range of four"
        " draws of the trials in five."
    )
    return Plot(f"knob-shares-{sensitivity.rates_are}", caption, spec)


def dependence_plot(sensitivity: Sensitivity) -> Plot:
    """The rate for each value of the first knobs, a panel for each."""
    values = [
        {
            "knob": effect.column.words,
            "value": setting_text(value),
            "order": place,
            "rate": round(rate / TERA, 4),
            "low": round(low / TERA, 4),
            "high": round(high / TERA, 4),
        }
        for effect in sensitivity.effects[:MOST_PANELS]
        for place, (value, rate, low, high) in enumerate(
            zip(effect.column.values, effect.rates, effect.low_rates, effect.high_rates, strict=True)
        )
    ]
    kind, title = f"var(--{sensitivity.rates_are})", f"{sensitivity.rates_are} TFLOPS"
    axis = {"labelAngle": 0, "labelOverlap": True}
    x = {"field": "value", "type": "ordinal", "sort": {"field": "order"}, "title": None, "axis": axis}
    scaled = quantity("rate", title, scale={"zero": False})
    panel: dict[str, Any] = {
        "width": 150,
        "height": 120,
        "encoding": {"x": x},
        "layer": [
            {
                "mark": {"type": "rule", "color": kind, "opacity": 0.5, "strokeWidth": 3},
                "encoding": {"y": quantity("low", title, scale={"zero": False}), "y2": {"field": "high"}},
            },
            {"mark": {"type": "line", "point": {"color": kind}, "color": kind}, "encoding": {"y": scaled}},
        ],
    }
    order = [effect.column.words for effect in sensitivity.effects[:MOST_PANELS]]
    spec: dict[str, Any] = {
        "data": {"values": values},
        "columns": 3,
        "facet": category("knob", sort=order),
        "spec": panel,
        "resolve": {"scale": {"x": "independent"}},
    }
    caption = (
        f"What each value of a knob does to the {sensitivity.rates_are} rate, all other knobs as they were (partial"
        " dependence), with the range of four draws in five."
    )
    return Plot(f"knob-dependence-{sensitivity.rates_are}", caption, spec)


def pair_plot(table: KnobTable, pair: Interaction) -> Plot:
    """The geometric mean of the rates for every pair of values that was tried, of the two knobs that interact most."""
    names = pair.first.name, pair.second.name
    points = grouped(table.rated_points, lambda point: tuple(point.settings[name] for name in names))
    values = [
        {
            "a": setting_text(a),
            "b": setting_text(b),
            "rate": round(geometric_mean([point.rate or 0.0 for point in of_pair]) / TERA, 4),
        }
        for (a, b), of_pair in points.items()
    ]
    encoding = {"x": _axis("a", pair.first), "y": _axis("b", pair.second)}
    color = quantity("rate", "TFLOPS", scale={"scheme": "viridis"})
    spec: dict[str, Any] = {
        "data": {"values": values},
        "height": {"step": BAR_STEP},
        "width": {"step": CELL_STEP},
        "mark": {"type": "rect"},
        "encoding": encoding | {"color": color},
    }
    caption = (
        f"Mean {table.rates_are} TFLOPS per device for each pair of values of {pair.first.words} and"
        f" {pair.second.words}, the two knobs that depend on each other most ({percent(pair.share)} % of the"
        " differences). Other knobs differ between cells."
    )
    return Plot(f"knob-pair-{table.rates_are}", caption, spec)


def _axis(field: str, column: KnobColumn) -> dict[str, Any]:
    names = [setting_text(value) for value in column.values]
    return {"field": field, "type": "ordinal", "sort": names, "title": column.words, "axis": {"labelAngle": 0}}
