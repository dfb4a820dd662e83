"""The time, energy, money and carbon of a trillion tokens, and the points that no other beats in all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conf.plan.experiment import Experiment
from conf.units import TRILLION, count_of
from results.analysis.findings.ranking import best_on_paper
from results.analysis.footprint import Footprint, counted_footprint, declared_footprint
from results.render.charts import category, dots, layer, quantity, tooltip
from results.render.section import Block, NamedTable, NumbersAre, Paragraph, Plot, ReportSubject, Section
from results.render.table import Cell, Table, number, text
from results.render.units import in_three_digits, round_to_digits
from sweeps.points.objectives import front
from sweeps.ranking.points import ranking_of
from sweeps.reading import TrialReading
from sweeps.trial import SweepRecord
from train_core.trial.folder import JobFolder

KWH_PER_MWH = 1000
MOST_ROWS = 12
MOST_POINTS = 400
FAR_APART = 4
"""Days whose longest are more than so many times the shortest stand on an axis of logarithms."""
FEWEST_ON_A_PLOT = 2
MOST_COUNTED = 10
COUNTED = (
    "Measured by counters, over the timed steps; idle power is in all of it, and is shown next to it where it was"
    " measured. Slurm's power is of whole nodes and of the whole job, start and end included; where it is missing, the"
    " site does not account for energy. What the declared watts would give is not measured."
)
NOT_KNOWN = 2**63
"""Slurm writes numbers near 2^64 where a node said nothing."""


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
        return self.takes.kwh(TRILLION) / KWH_PER_MWH

    @property
    def costs(self) -> tuple[float, ...]:
        money = () if self.dollars is None else (self.dollars,)
        return (self.days, *money, self.megawatt_hours)


def section(subject: ReportSubject) -> Section | None:
    """Return the section, or None if no plan has a time, or only steps of a proxy without a full-size plan do."""
    record = subject.sweep.record
    measured = measured_costs(subject.results) if record.mode == "cluster" else []
    points = measured or predicted_costs(record)
    # The energy of each trial by counters, beside what its declared watts would come to.
    counted = [row for result in ranking_of(subject.results)[:MOST_COUNTED] if (row := _counted_row(result))]
    if not points:
        return None
    paper = best_on_paper(record)  # the plan that the report answers with
    on_paper = next((point for point in points if paper and point.trial_id == paper.trial_id), points[0])
    chosen = measured[0] if measured else on_paper
    best = _front(points)
    kind: NumbersAre = "measured" if measured else "predicted"
    blocks: list[Block] = [scatter(points, best)] if len(best) >= FEWEST_ON_A_PLOT else []
    if len(points) > MOST_ROWS:
        others = f"The points that no other beats, and the fastest others; all {len(points)} are in the CSV."
        blocks.append(Paragraph(others))
    blocks += [NamedTable("cost", cost_table(points, best, chosen)), Paragraph(_assumptions(chosen), is_note=True)]
    if counted:
        blocks += [Paragraph(COUNTED), NamedTable("energy-counted", Table.of(counted))]
        if not measured:
            kind = "measured and predicted"
    finding = f"{_finding(chosen)} {_frugal_sentence(chosen, best, len(points))}".strip()
    return Section("cost", "What a trillion tokens take", kind, finding, tuple(blocks))


def _front(points: Sequence[CostPoint]) -> list[CostPoint]:
    """The points that no other beats in all of days, dollars and energy, the fastest first."""
    # A point without a price cannot be held against one that has.
    priced = [point for point in points if point.dollars is not None]
    alike = priced or list(points)
    return sorted((alike[index] for index in front([point.costs for point in alike])), key=lambda point: point.days)


def measured_costs(results: Sequence[TrialReading]) -> list[CostPoint]:
    """Return the measured points, fastest per device first; energy is counted if all of the trials counted it."""
    complete = [
        (result, result.experiment, result.performance)
        for result in ranking_of(results)
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
    points = []
    for trial in record.plan:
        if trial.experiment and trial.estimate and trial.infeasible_reason is None:
            takes = declared_footprint(trial.experiment, trial.estimate)
            points.append(CostPoint(trial.trial_id, record.plan_label_of(trial), trial.experiment, takes))
    return points


def cost_table(points: Sequence[CostPoint], best: Sequence[CostPoint], chosen: CostPoint) -> Table:
    """The points that no other beats with the numbers that they have in the plot, and the fastest others."""
    on_front = set(map(id, best))
    others = sorted((point for point in points if id(point) not in on_front), key=lambda point: point.days)
    shown = [*best, *others[: max(0, MOST_ROWS - len(best))]]
    shown += [chosen] if not any(point is chosen for point in shown) else []
    rows = [_cost_row(position, point, id(point) in on_front) for position, point in enumerate(shown, start=1)]
    marked = [position for position, point in enumerate(shown) if point is chosen]
    table = Table.of(rows, marked).without_empty_columns()
    # One point that none beats is the marked one.
    return table if len(best) > 1 else table.only([name for name in table.columns if name != "beaten by none"])


def _cost_row(position: int, point: CostPoint, is_on_front: bool) -> dict[str, Cell]:
    takes, site = point.takes, point.takes.site_kwh(TRILLION)
    return {
        "#": number(str(position), -position),
        "layout": text(point.layout),
        "devices": number(f"{takes.num_devices:,}", takes.num_devices),
        "days": _rounded_cell(point.days),
        "device-hours": _rounded_cell(takes.device_hours(TRILLION)),
        "MWh": _rounded_cell(point.megawatt_hours),
        "MWh of the site": _rounded_cell(None if site is None else site / KWH_PER_MWH),
        "dollars": _rounded_cell(point.dollars),
        "tonnes CO2": _rounded_cell(takes.tonnes_co2(TRILLION)),
        "beaten by none": text("yes" if is_on_front else ""),
    }


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
    number_beside = {"type": "text", "dx": 9, "dy": -7, "align": "left"}
    return [
        {"transform": [front], **layer(line, x=x, y=y, order=order)},
        layer(dots(60), x=x, y=y, color=category("which", scale=scale), shape=shape, tooltip=shown),
        {"transform": [front], **layer(number_beside, x=x, y=y, text={"field": "place", "type": "nominal"})},
    ]


def _value(point: CostPoint, which: str, place: str) -> dict[str, Any]:
    money = {} if point.dollars is None else {"dollars": round_to_digits(point.dollars)}
    costs = {"days": round_to_digits(point.days), "MWh": round_to_digits(point.megawatt_hours), **money}
    return {"layout": point.layout, "devices": point.takes.num_devices, "which": which, "place": place, **costs}


def _finding(point: CostPoint) -> str:
    tonnes = point.takes.tonnes_co2(TRILLION)
    counted = point.takes.energy_is == "counted"
    parts = [
        f"{in_three_digits(point.takes.device_hours(TRILLION))} device-hours",
        f"{in_three_digits(point.megawatt_hours)} MWh ({'counted' if counted else 'at the declared watts'})",
        *([] if point.dollars is None else [f"{in_three_digits(point.dollars)} dollars"]),
        *([] if tonnes is None else [f"{in_three_digits(tonnes)} tonnes of CO2"]),
    ]
    return (
        f"{point.takes.time_is.capitalize()}: a trillion tokens of {point.experiment.model.name} as `{point.layout}`"
        f" take {in_three_digits(point.days)} days on {count_of(point.takes.num_devices, 'device')}:"
        f" {', '.join(parts)}."
    )


def _frugal_sentence(chosen: CostPoint, best: Sequence[CostPoint], num_points: int) -> str:
    """Return what the chosen point takes the least of, or which point takes less money or energy."""
    if num_points < 2:
        return ""
    frugal = min(best, key=lambda point: point.costs[1:])
    if frugal.costs == chosen.costs:
        return f"Of {num_points} points it takes the least {_least_of(chosen, best)}."
    money = "" if frugal.dollars is None else f"{in_three_digits(frugal.dollars)} dollars and "
    return (
        f"The most frugal of {num_points} points, `{frugal.layout}` on"
        f" {count_of(frugal.takes.num_devices, 'device')}, takes {money}"
        f"{in_three_digits(frugal.megawatt_hours)} MWh in {in_three_digits(frugal.days)} days."
    )


def _least_of(chosen: CostPoint, best: Sequence[CostPoint]) -> str:
    """Return the names of what no other point takes less of; of money or energy there is always one."""
    names = ("time", "energy") if chosen.dollars is None else ("time", "money", "energy")
    lowest = map(min, zip(*(point.costs for point in best), strict=True))
    least = [name for name, cost, low in zip(names, chosen.costs, lowest, strict=True) if cost == low]
    return " and ".join(filter(None, (", ".join(least[:-1]), least[-1])))


def _assumptions(point: CostPoint) -> str:
    """Every declared number that the figures rest on, with its source."""
    site = point.takes.site
    devices = {block.cluster.device.name: block.cluster.device for block in point.experiment.blocks}
    words = [
        f"{name}: {device.watts:g} W ({device.watts_source});"
        f" {'no price' if device.price_per_hour is None else f'{device.price_per_hour:g} dollars a device-hour'}"
        f" ({device.price_source})."
        for name, device in devices.items()
    ]
    if site is None:
        words.append("The devices stand at several sites, so that nothing is said of carbon.")
    else:
        grid = _assumption(site.grid_co2_grams_per_kwh, " g CO2/kWh", site.grid_co2_source, "grid_co2_grams_per_kwh")
        pue, source = site.power_usage_effectiveness, site.power_usage_effectiveness_source
        words.append(f"Grid: {grid}. PUE: {_assumption(pue, '', source, 'power_usage_effectiveness')}.")
    return (
        f"At the rate of a step, without failures and checkpoints. Declared: {' '.join(words)} MWh is of the devices"
        " alone; hosts, network and storage are in no figure. Where a PUE is declared, MWh of the site and CO2 hold"
        " cooling."
    )


def _assumption(value: float | None, unit: str, source: str, name: str) -> str:
    if value is None:
        return f"not declared (`cluster.site.{name}`)"
    return f"{value:g}{unit} ({source or 'as given'})"


def _counted_row(result: TrialReading) -> dict[str, Cell] | None:
    performance = result.performance
    if performance is None or result.experiment is None or performance.energy_joules_per_step is None:
        return None
    figures = {
        "J/step": performance.energy_joules_per_step,
        "J/token": performance.energy_joules_per_token,
        "W": performance.energy_watts,
        "idle W": performance.energy_idle_watts,
        "counted s": performance.energy_seconds,
        "hosts J/step": performance.energy_host_joules_per_step,
        "Slurm W": slurm_watts(result.folder),
        "declared J/token": declared_footprint(result.experiment, performance).joules_per_token,
    }
    cells = {head: _rounded_cell(value) for head, value in figures.items()}
    return {"layout": text(result.label), **cells, "counters": text(performance.energy_source or "")}


def _rounded_cell(value: float | None) -> Cell:
    return number(in_three_digits(value), value)


def slurm_watts(folder: JobFolder) -> float | None:
    """Mean watts of an ended job's nodes, start and end included; None where Slurm states no energy."""
    try:
        record = json.loads(folder.slurm_job.read_text())
        joules, seconds = int(record["ConsumedEnergyRaw"]), int(record["ElapsedRaw"])
    except (OSError, ValueError, KeyError, TypeError):  # no such job, or a site that accounts for none
        return None
    return joules / seconds if 0 < joules < NOT_KNOWN and seconds > 0 else None
