"""Time, money and energy of a trillion tokens: which points no other beats in all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conf.units import SECONDS_PER_HOUR, TRILLION
from results.footprint import Footprint, counted_footprint, declared_footprint
from results.report.section import Block, NamedTable, Paragraph, Plot, ReportSubject, Section
from results.report.table import ReportTable, number, text
from results.terminal import plan_label
from results.units import ABSENT, count, rounded, significant
from sweeps.reading import ranked
from train_core.costs import Estimate
from train_core.measurement import Performance

HOURS_PER_DAY = 24
KWH_PER_MWH = 1000
MOST_POINTS = 400
"""Points that are drawn, the fastest ones beside the front."""
COLUMNS = ("layout", "devices", "days", "device-hours", "dollars", "MWh", "front")


@dataclass(frozen=True)
class Price:
    """What a trillion tokens take by one point.

    Attributes:
        dollars: None where a device has no price.
        megawatt_hours: as metered, or an estimate by the devices' declared power.
    """

    layout: str
    devices: int
    days: float
    device_hours: float
    dollars: float | None
    megawatt_hours: float
    is_metered: bool = False

    @property
    def costs(self) -> tuple[float, ...]:
        money = () if self.dollars is None else (self.dollars,)
        return (self.days, *money, self.megawatt_hours)


def section(subject: ReportSubject) -> Section | None:
    """None where fewer than two points are known, which leaves nothing to choose between."""
    from sweeps.search.axes.objectives import front  # with Hydra, for which whoever imports the report need not wait

    measured = _measured(subject) if subject.sweep.record.mode == "cluster" else []
    prices = measured or _predicted(subject)
    if len(prices) < 2:
        return None
    # A point without a price cannot be held against one that has.
    if len({len(price.costs) for price in prices}) > 1:
        prices = [price for price in prices if price.dollars is not None]
    best = [prices[index] for index in front([price.costs for price in prices])]
    best.sort(key=lambda price: price.days)
    return Section(
        name="pareto",
        title="Time, money and energy",
        numbers_are="measured" if measured else "predicted",
        finding=_finding(best, len(prices)),
        blocks=tuple(_blocks(subject, prices, best)),
    )


def _measured(subject: ReportSubject) -> list[Price]:
    found = [
        (result.label, result.experiment, result.performance)
        for result in ranked(list(subject.results))
        if result.experiment and result.performance
    ]
    # Counters and declared watts see different things, so that energies of the two kinds are never compared.
    are_metered = all(performance.energy_joules_per_token is not None for _, _, performance in found)
    return [
        _price(label, performance, performance.num_devices, footprint)
        for label, experiment, performance in found
        for counted in [counted_footprint(experiment, performance) if are_metered else None]
        for footprint in [counted or declared_footprint(experiment, performance)]
    ]


def _predicted(subject: ReportSubject) -> list[Price]:
    return [
        _price(
            plan_label(trial),
            trial.estimate,
            trial.experiment.parallel.world_size,
            declared_footprint(trial.experiment, trial.estimate),
        )
        for trial in subject.sweep.record.plan
        if trial.experiment and trial.estimate and trial.infeasible_reason is None
    ]


def _price(layout: str, step: Performance | Estimate, num_devices: int, takes: Footprint) -> Price:
    """A trillion tokens at the rate of this step, on so many devices."""
    return Price(
        layout=layout,
        devices=num_devices,
        days=TRILLION / step.tokens_per_second / SECONDS_PER_HOUR / HOURS_PER_DAY,
        device_hours=takes.device_hours(TRILLION),
        dollars=takes.dollars(TRILLION),
        megawatt_hours=takes.kwh(TRILLION) / KWH_PER_MWH,
        is_metered=takes.energy_is == "counted",
    )


def _finding(best: Sequence[Price], num_points: int) -> str:
    fastest, cheapest = best[0], best[-1]
    what = "time and energy" if fastest.dollars is None else "time, money and energy"
    if len({price.costs for price in best}) == 1:
        return (
            f"Of {num_points} points `{fastest.layout}` takes the least {what} for a trillion tokens:"
            f" {_in_words(fastest)}."
        )
    return (
        f"{len(best)} of {num_points} points are beaten by no other. For a trillion tokens the fastest,"
        f" `{fastest.layout}` on {fastest.devices} devices, takes {_in_words(fastest)}; the most frugal,"
        f" `{cheapest.layout}` on {cheapest.devices}, {_in_words(cheapest)}."
    )


def _in_words(price: Price) -> str:
    money = "" if price.dollars is None else f", {_dollars(price.dollars)} dollars"
    how = "metered" if price.is_metered else "estimated"
    return f"{significant(price.days)} days{money} and {significant(price.megawatt_hours)} MWh ({how})"


def _blocks(subject: ReportSubject, prices: Sequence[Price], best: Sequence[Price]) -> Iterator[Block]:
    yield Paragraph(_where_from(subject, prices[0]))
    yield _scatter(prices, best)
    yield NamedTable("pareto-front", _table(prices, best))


def _where_from(subject: ReportSubject, price: Price) -> str:
    experiments = [trial.experiment for trial in subject.sweep.record.plan if trial.experiment]
    devices = {block.cluster.device.name: block.cluster.device for each in experiments for block in each.blocks}
    watts = "; ".join(f"{name}: {device.watts:g} W" for name, device in devices.items())
    sentence = "All of a trillion tokens, at the rate of a step, without failures and checkpoints."
    if price.is_metered:
        sentence += " Energy is what the devices' counters said beside the timed steps."
    else:
        sentence += f" Energy is an estimate and was not metered: declared watts of the devices alone ({watts})."
    if price.dollars is None:
        return f"{sentence} No price of a device is configured (cluster.device.price_per_hour), so money is left out."
    prices = "; ".join(f"{name}: {device.price_per_hour:g} dollars an hour" for name, device in devices.items())
    return f"{sentence} Money is that of the configured prices ({prices})."


def _scatter(prices: Sequence[Price], best: Sequence[Price]) -> Plot:
    has_money = prices[0].dollars is not None
    y = "dollars" if has_money else "MWh"
    how = "metered" if prices[0].is_metered else "estimated"
    title = "dollars for a trillion tokens" if has_money else f"MWh for a trillion tokens ({how})"
    on_front = set(map(id, best))
    others = sorted((price for price in prices if id(price) not in on_front), key=lambda price: price.days)
    shown = [(price, "on the front") for price in best] + [(price, "beaten") for price in others[:MOST_POINTS]]
    values = [_value(price, which) for price, which in shown]
    x_axis = {"field": "days", "type": "quantitative", "title": "days for a trillion tokens", "scale": {"zero": False}}
    y_axis = {"field": y, "type": "quantitative", "title": title, "scale": {"zero": False}}
    which = {"field": "which", "type": "nominal", "title": None, "sort": ["on the front", "beaten"]}
    fields = ("layout", "devices", "days", "dollars", "MWh") if has_money else ("layout", "devices", "days", "MWh")
    return Plot(
        "pareto",
        "Every point is a plan; the nearer to the lower left the better. Those on the front are beaten by no other.",
        {
            "data": {"values": values},
            "layer": [
                {
                    "transform": [{"filter": "datum.which === 'on the front'"}],
                    "mark": {"type": "line", "interpolate": "step-after", "color": "var(--soft)"},
                    "encoding": {"x": x_axis, "y": y_axis, "order": {"field": "days", "type": "quantitative"}},
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 60},
                    "encoding": {
                        "x": x_axis,
                        "y": y_axis,
                        "color": which,
                        "shape": which | {"legend": None},
                        "tooltip": [{"field": field} for field in fields],
                    },
                },
            ],
            "height": 320,
        },
    )


def _value(price: Price, which: str) -> dict[str, Any]:
    money = {} if price.dollars is None else {"dollars": rounded(price.dollars)}
    known = {"days": rounded(price.days), "MWh": rounded(price.megawatt_hours), **money}
    return {"layout": price.layout, "devices": price.devices, "which": which, **known}


def _table(prices: Sequence[Price], best: Sequence[Price]) -> ReportTable:
    """All points, the front first."""
    on_front = set(map(id, best))
    others = sorted((price for price in prices if id(price) not in on_front), key=lambda price: price.days)
    rows = tuple(
        (
            text(price.layout),
            number(str(price.devices), price.devices),
            number(significant(price.days), price.days),
            number(count(price.device_hours), price.device_hours),
            number(_dollars(price.dollars), price.dollars),
            number(significant(price.megawatt_hours), price.megawatt_hours),
            text("yes" if id(price) in on_front else ""),
        )
        for price in (*best, *others)
    )
    return ReportTable(COLUMNS, rows, frozenset(COLUMNS) - {"layout", "front"}, frozenset(range(len(best))))


def _dollars(value: float | None) -> str:
    return ABSENT if value is None else count(value)
