"""Points of a sweep by what a trillion tokens take with them: their table and their plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conf.plan.experiment import Experiment
from conf.units import TRILLION
from results.footprint import Footprint, counted_footprint, declared_footprint
from results.report.blocks.charts import category, dots, quantity, tooltip
from results.report.section import Plot
from results.table import Cell, Table, number, text
from results.units import in_three_digits, round_to_digits
from sweeps.reading import TrialReading
from sweeps.repeats.ranking import ranking_of
from sweeps.trial import SweepRecord

KWH_PER_MWH = 1000
MOST_ROWS = 12
MOST_POINTS = 400
"""Points that are drawn, the fastest ones beside the front."""
FAR_APART = 4
"""Days whose longest are more than so many times the shortest stand on an axis of logarithms."""
NUMERIC = ("#", "devices", "days", "device-hours", "MWh", "MWh of the site", "dollars", "tonnes CO2")
COLUMNS = ("#", "layout", *NUMERIC[1:], "beaten by none")


@dataclass(frozen=True)
class CostPoint:
    """One plan, and what each token takes with it."""

    trial_id: str
    layout: str
    experiment: Experiment
    takes: Footprint

    @property
    def days(self) -> float:
        return self.takes.days(TRILLION)

    @property
    def dollars(self) -> float | None:
        return self.takes.dollars(TRILLION)

    @property
    def megawatt_hours(self) -> float:
        """The megawatt hours of the devices alone."""
        return self.takes.kwh(TRILLION) / KWH_PER_MWH

    @property
    def costs(self) -> tuple[float, ...]:
        money = () if self.dollars is None else (self.dollars,)
        return (self.days, *money, self.megawatt_hours)


def measured_costs(results: Sequence[TrialReading]) -> list[CostPoint]:
    """Return the measured points, fastest per device first; energy is counted if all of the trials counted it."""
    complete = [
        (result, result.experiment, result.performance)
        for result in ranking_of(list(results))
        if result.experiment and result.performance
    ]
    # Counters and declared watts see different things, so that energies of the two kinds are never compared.
    are_counted = all(performance.energy_joules_per_token is not None for _, _, performance in complete)
    return [
        CostPoint(result.trial.trial_id, result.label, experiment, takes)
        for result, experiment, performance in complete
        for counted in [counted_footprint(experiment, performance) if are_counted else None]
        for takes in [counted or declared_footprint(experiment, performance)]
    ]


def predicted_costs(record: SweepRecord) -> list[CostPoint]:
    """Return the predicted costs of the points that fit."""
    return [
        CostPoint(
            trial.trial_id,
            record.plan_label_of(trial),
            trial.experiment,
            declared_footprint(trial.experiment, trial.estimate),
        )
        for trial in record.plan
        if trial.experiment and trial.estimate and trial.infeasible_reason is None
    ]


def cost_table(points: Sequence[CostPoint], best: Sequence[CostPoint], chosen: CostPoint) -> Table:
    """The points that no other beats with the numbers that they have in the plot, and the fastest others."""
    on_front = set(map(id, best))
    others = sorted((point for point in points if id(point) not in on_front), key=lambda point: point.days)
    shown = [*best, *others[: max(0, MOST_ROWS - len(best))]]
    shown += [chosen] if not any(point is chosen for point in shown) else []
    rows = tuple(_row(position, point, id(point) in on_front) for position, point in enumerate(shown, start=1))
    marked = frozenset(position for position, point in enumerate(shown) if point is chosen)
    table = Table(COLUMNS, rows, frozenset(NUMERIC), marked).without_empty_columns()
    # One point that none beats is the marked one.
    return table if len(best) > 1 else table.only([name for name in table.columns if name != "beaten by none"])


def _row(position: int, point: CostPoint, is_on_front: bool) -> tuple[Cell, ...]:
    takes, site = point.takes, point.takes.site_kwh(TRILLION)
    return (
        number(str(position), -position),
        text(point.layout),
        number(f"{takes.num_devices:,}", takes.num_devices),
        _rounded_cell(point.days),
        _rounded_cell(takes.device_hours(TRILLION)),
        _rounded_cell(point.megawatt_hours),
        _rounded_cell(None if site is None else site / KWH_PER_MWH),
        _rounded_cell(point.dollars),
        _rounded_cell(takes.tonnes_co2(TRILLION)),
        text("yes" if is_on_front else ""),
    )


def _rounded_cell(value: float | None) -> Cell:
    return number(in_three_digits(value), value)


def scatter(points: Sequence[CostPoint], best: Sequence[CostPoint]) -> Plot:
    """Days against dollars, or against energy where no price is declared."""
    has_money = best[0].dollars is not None
    how = "counted" if best[0].takes.energy_is == "counted" else "at the declared watts"
    field, title = ("dollars", "dollars") if has_money else ("MWh", f"MWh of the devices ({how})")
    on_front = set(map(id, best))
    alike = [point for point in points if (point.dollars is not None) == has_money]
    others = sorted((point for point in alike if id(point) not in on_front), key=lambda point: point.days)[:MOST_POINTS]
    values = [_value(point, "beaten by none", str(position)) for position, point in enumerate(best, start=1)]
    values += [_value(point, "other points", "") for point in others]
    days = [value["days"] for value in values]
    kind = {"type": "log"} if max(days) > FAR_APART * min(days) else {"zero": False}
    x = quantity("days", "days for a trillion tokens", scale=kind)
    y = quantity(field, title, scale={"zero": False})
    return Plot(
        "cost",
        "Every point is a plan; the nearer to the lower left the better. Those with a number, that of their row below,"
        " are beaten by no other in time, money and energy.",
        {"data": {"values": values}, "layer": _layers(x, y), "height": 320},
    )


def _layers(x: dict[str, Any], y: dict[str, Any]) -> list[dict[str, Any]]:
    front = {"filter": "datum.which === 'beaten by none'"}
    scale = {"domain": ["beaten by none", "other points"], "range": ["var(--c1)", "var(--c8)"]}
    shape = {"field": "which", "type": "nominal", "legend": None}
    shown = tooltip("layout", "devices", "days", "dollars", "MWh")
    order = {"field": "days", "type": "quantitative"}
    line = {"type": "line", "interpolate": "step-after", "color": "var(--soft)"}
    return [
        {"transform": [front], "mark": line, "encoding": {"x": x, "y": y, "order": order}},
        {
            "mark": dots(60),
            "encoding": {"x": x, "y": y, "color": category("which", scale=scale), "shape": shape, "tooltip": shown},
        },
        {
            "transform": [front],
            "mark": {"type": "text", "dx": 9, "dy": -7, "align": "left"},
            "encoding": {"x": x, "y": y, "text": {"field": "place", "type": "nominal"}},
        },
    ]


def _value(point: CostPoint, which: str, place: str) -> dict[str, Any]:
    money = {} if point.dollars is None else {"dollars": round_to_digits(point.dollars)}
    costs = {"days": round_to_digits(point.days), "MWh": round_to_digits(point.megawatt_hours), **money}
    return {"layout": point.layout, "devices": point.takes.num_devices, "which": which, "place": place, **costs}
