"""What a training takes in energy, money and carbon."""

from __future__ import annotations

from collections.abc import Sequence

from conf.experiment import Experiment
from results.footprint import Footprint, counted_footprint, declared_footprint
from results.report.section import Block, NamedTable, NumbersAre, Paragraph, ReportSubject, Section
from results.report.table import Cell, ReportTable, number, text
from results.slurm_energy import slurm_watts
from results.units import count, significant
from sweeps.reading import TrialReading, ranked
from sweeps.trial import SweepRecord, Trial

TOKENS = 1e12
KWH_PER_MWH = 1000
MOST_COUNTED = 10
NUMERIC = ("device-hours", "MWh", "MWh of the site", "dollars", "tonnes CO2")
COLUMNS = ("layout", "step time is", "energy is", *NUMERIC)
COUNTED_NUMERIC = ("J/step", "J/token", "W", "idle W", "counted s", "hosts J/step", "Slurm W", "declared J/token")
COUNTED_COLUMNS = ("layout", *COUNTED_NUMERIC, "counters")
Row = tuple[str, Experiment, Footprint]


def section(subject: ReportSubject) -> Section | None:
    """None where no plan has a time, or only a proxy's steps do and the full size is not predicted."""
    rows = [*_measured(subject), *_predicted(subject.sweep.record)]
    counted = _counted_table(subject.results)
    if not rows:
        return None
    blocks: list[Block] = [NamedTable("energy", _table(rows)), Paragraph(_assumptions(rows[0]))]
    if counted:
        blocks += [Paragraph(_COUNTED), NamedTable("energy-counted", counted)]
    kinds = {found.time_is for _, _, found in rows} | ({"measured"} if counted else set())
    kind: NumbersAre = "predicted" if kinds == {"predicted"} else "measured" if kinds == {"measured"} else _BOTH
    return Section("energy", "Energy, money and carbon", kind, _finding(rows[0]), tuple(blocks))


def _measured(subject: ReportSubject) -> list[Row]:
    """The fastest trial at full size: by counters where its devices had any, and by declared watts."""
    if subject.sweep.record.mode == "proxy":
        return []  # a trillion tokens of a small stand-in would say nothing
    best = next(iter(ranked(list(subject.results))), None)
    if best is None or best.performance is None or best.experiment is None:
        return []
    counted = counted_footprint(best.experiment, best.performance)
    found = [*([counted] if counted else []), declared_footprint(best.experiment, best.performance)]
    return [(best.label, best.experiment, each) for each in found]


def _predicted(record: SweepRecord) -> list[Row]:
    """The fastest plan on paper, per device."""
    trials = record.plan if record.mode == "proxy" else record.trials
    fitting = [trial for trial in trials if trial.estimate and trial.experiment and not trial.infeasible_reason]
    best = max(fitting, key=_predicted_rate, default=None)
    if best is None or best.experiment is None or best.estimate is None:
        return []
    return [(best.experiment.label, best.experiment, declared_footprint(best.experiment, best.estimate))]


def _predicted_rate(trial: Trial) -> float:
    return trial.estimate.model_flops_per_second_per_device if trial.estimate else 0.0


def _table(rows: Sequence[Row]) -> ReportTable:
    cells = [
        (
            text(label),
            text(found.time_is),
            text(found.energy_is),
            _rounded(found.device_hours(TOKENS)),
            _rounded(found.kwh(TOKENS) / KWH_PER_MWH),
            _rounded(None if (whole := found.site_kwh(TOKENS)) is None else whole / KWH_PER_MWH),
            _rounded(found.dollars(TOKENS)),
            _rounded(found.tonnes_co2(TOKENS)),
        )
        for label, _, found in rows
    ]
    return ReportTable(COLUMNS, tuple(cells), frozenset(NUMERIC))


def _rounded(value: float | None) -> Cell:
    return number(in_three_digits(value), value)


def in_three_digits(value: float | None) -> str:
    """Three digits that mean something, since no price or emission is known better."""
    return count(float(f"{value:.3g}")) if value is not None and value >= 1000 else significant(value)


def _finding(row: Row) -> str:
    label, experiment, found = row
    dollars, tonnes = found.dollars(TOKENS), found.tonnes_co2(TOKENS)
    money = "no price is declared" if dollars is None else f"{in_three_digits(dollars)} dollars"
    carbon = "no emission of the grid is declared" if tonnes is None else f"{in_three_digits(tonnes)} tonnes of CO2"
    energy = "counted energy" if found.energy_is == "counted" else "the declared watts of the devices"
    return (
        f"A trillion tokens of {experiment.model.name} with `{label}` take"
        f" {in_three_digits(found.kwh(TOKENS) / KWH_PER_MWH)} MWh ({money}, {carbon}), from a {found.time_is} step and"
        f" {energy}."
    )


def _assumptions(row: Row) -> str:
    """Every declared number that the table rests on, with its source."""
    _, experiment, _ = row
    device, site = experiment.cluster.device, experiment.cluster.site
    price = "none" if device.price_per_hour is None else f"{device.price_per_hour:g} dollars a device-hour"
    grid, pue = site.grid_co2_grams_per_kwh, site.power_usage_effectiveness
    said = [
        f"For {TOKENS:.0e} tokens.".replace("e+", "e"),
        f"Declared: {device.watts:g} W a device ({device.watts_source}); price {price} ({device.price_source});"
        f" grid {_declared(grid, 'g CO2/kWh', site.grid_co2_source, 'cluster.site.grid_co2_grams_per_kwh')};"
        f" PUE {_declared(pue, '', site.power_usage_effectiveness_source, 'cluster.site.power_usage_effectiveness')}.",
        "MWh is of the devices alone, all their time at those watts unless it was counted; hosts, network and storage"
        " are in no figure, and cooling only in that of the site. CO2 is the site's where its PUE is declared.",
    ]
    return " ".join(said)


def _declared(value: float | None, unit: str, source: str, key: str) -> str:
    if value is None:
        return f"not declared (`{key}`)"
    return f"{value:g} {unit}".strip() + f" ({source or 'as given'})"


def _counted_table(results: Sequence[TrialReading]) -> ReportTable | None:
    """What counters said of each trial, beside what its declared watts would be."""
    rows = [_counted_row(result) for result in ranked(list(results))[:MOST_COUNTED]]
    shown = tuple(row for row in rows if row is not None)
    return ReportTable(COUNTED_COLUMNS, shown, frozenset(COUNTED_NUMERIC)) if shown else None


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
    return text(result.label), *map(_rounded, values), text(performance.energy_source or "")


_BOTH: NumbersAre = "measured and predicted"
_COUNTED = (
    "Measured by counters, over the timed steps; idle power is in all of it, and stands beside it where it was"
    " measured. Slurm's power is of whole nodes and of the whole job, start and end included; where there is none, the"
    " site accounts for no energy. What the declared watts would be is no measurement."
)
