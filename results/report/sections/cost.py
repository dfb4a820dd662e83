"""The time, energy, money and carbon of a trillion tokens, and the points that no other beats in all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from conf.units import TRILLION, count_of
from results.footprint import declared_footprint
from results.report.blocks.cost_points import MOST_ROWS, CostPoint, cost_table, measured_costs, predicted_costs, scatter
from results.report.findings.best_plan import best_on_paper
from results.report.section import Block, NamedTable, NumbersAre, Paragraph, ReportSubject, Section
from results.table import Cell, Table, number, text
from results.units import in_three_digits
from sweeps.reading import TrialReading
from sweeps.repeats.ranking import ranking_of
from train_core.trial_folder import JobFolder

FEWEST_ON_A_PLOT = 2
MOST_COUNTED = 10
COUNTED_NUMERIC = ("J/step", "J/token", "W", "idle W", "counted s", "hosts J/step", "Slurm W", "declared J/token")
COUNTED_COLUMNS = ("layout", *COUNTED_NUMERIC, "counters")
COUNTED = (
    "Measured by counters, over the timed steps; idle power is in all of it, and stands beside it where it was"
    " measured. Slurm's power is of whole nodes and of the whole job, start and end included; where there is none, the"
    " site accounts for no energy. What the declared watts would be is no measurement."
)
NOT_KNOWN = 2**63
"""Slurm writes numbers near 2^64 where a node said nothing."""


def section(subject: ReportSubject) -> Section | None:
    """Return the section, or None if no plan has a time, or only steps of a proxy without a full-size plan do."""
    record = subject.sweep.record
    measured = measured_costs(subject.results) if record.mode == "cluster" else []
    points = measured or predicted_costs(record)
    counted = counted_table(subject.results)
    if not points:
        return None
    chosen = measured[0] if measured else _point_on_paper(subject, points)
    best = _front(points)
    kind: NumbersAre = "measured" if measured else "predicted"
    blocks = [*_blocks(points, best, chosen), Paragraph(_assumptions(chosen), is_note=True)]
    if counted:
        blocks += [Paragraph(COUNTED), NamedTable("energy-counted", counted)]
    if counted and kind == "predicted":
        kind = "measured and predicted"
    finding = f"{_finding(chosen)} {_frugal_sentence(chosen, best, len(points))}".strip()
    return Section("cost", "What a trillion tokens take", kind, finding, tuple(blocks))


def _point_on_paper(subject: ReportSubject, points: Sequence[CostPoint]) -> CostPoint:
    """The point of the plan that the report answers with."""
    best = best_on_paper(subject.sweep.record)
    return next((point for point in points if best and point.trial_id == best.trial_id), points[0])


def _front(points: Sequence[CostPoint]) -> list[CostPoint]:
    """The points that no other beats in all of days, dollars and energy, the fastest first."""
    from sweeps.points.objectives import front  # with Hydra, for which whoever imports the report need not wait

    # A point without a price cannot be held against one that has.
    priced = [point for point in points if point.dollars is not None]
    alike = priced or list(points)
    return sorted((alike[index] for index in front([point.costs for point in alike])), key=lambda point: point.days)


def _blocks(points: Sequence[CostPoint], best: Sequence[CostPoint], chosen: CostPoint) -> Iterator[Block]:
    if len(best) >= FEWEST_ON_A_PLOT:
        yield scatter(points, best)
    if len(points) > MOST_ROWS:
        yield Paragraph(f"The points that no other beats, and the fastest others; all {len(points)} are in the CSV.")
    yield NamedTable("cost", cost_table(points, best, chosen))


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
    """Return the sentence on what the chosen point takes the least of, or on the point that takes less money or energy.

    Args:
        best: the points that no other beats, the fastest first.
    """
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


def counted_table(results: Sequence[TrialReading]) -> Table | None:
    """The energy of each trial by counters, beside what its declared watts would come to."""
    rows = [_counted_row(result) for result in ranking_of(list(results))[:MOST_COUNTED]]
    shown = tuple(row for row in rows if row is not None)
    return Table(COUNTED_COLUMNS, shown, frozenset(COUNTED_NUMERIC)) if shown else None


def _counted_row(result: TrialReading) -> tuple[Cell, ...] | None:
    performance = result.performance
    if performance is None or result.experiment is None or performance.energy_joules_per_step is None:
        return None
    values = (
        performance.energy_joules_per_step,
        performance.energy_joules_per_token,
        performance.energy_watts,
        performance.energy_idle_watts,
        performance.energy_seconds,
        performance.energy_host_joules_per_step,
        slurm_watts(result.folder),
        declared_footprint(result.experiment, performance).joules_per_token,
    )
    return text(result.label), *map(_rounded_cell, values), text(performance.energy_source or "")


def _rounded_cell(value: float | None) -> Cell:
    return number(in_three_digits(value), value)


def slurm_watts(folder: JobFolder) -> float | None:
    """Mean watts of the job's nodes from its first second to its last; None where Slurm states no energy.

    It is taken from the record that a report keeps of an ended job: joules over elapsed seconds.
    """
    try:
        record = json.loads(folder.slurm_job.read_text())
        joules, seconds = int(record["ConsumedEnergyRaw"]), int(record["ElapsedRaw"])
    except (OSError, ValueError, KeyError, TypeError):  # no such job, or a site that accounts for none
        return None
    return joules / seconds if 0 < joules < NOT_KNOWN and seconds > 0 else None
