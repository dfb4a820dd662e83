"""What a trillion tokens take. Every measured number is MADE UP for the test."""

from __future__ import annotations

from typing import Any

from conf.types.cluster_spec import SiteSpec
from results.render.section import Section
from results.report.sections.cost import section
from tests.results.conftest import FULL, WriteSweep, cluster, performance, trial
from tests.results.report.sections.conftest import drawn, plots_of, rows_of, shown_of, subject_of, text_of

SITE = SiteSpec(grid_co2_grams_per_kwh=500.0, grid_co2_source="made up")
PLACE = cluster().model_copy(update={"site": SITE})
SIZES: dict[str, Any] = {"model": FULL, "cluster": PLACE, "pipeline_parallel_size": 16}
FEW = trial("few", world_size=64, tensor_parallel_size=4, **SIZES)
MANY = trial("many", world_size=128, tensor_parallel_size=8, **SIZES)
SLOW = trial("slow", world_size=128, tensor_parallel_size=4, **SIZES)
DAYS = 1e12 / 86_400


def measured(write_sweep: WriteSweep, **rates: float) -> Section:
    """Trials with these tokens a second."""
    trials = {each.trial_id: each for each in (FEW, MANY, SLOW)}
    how = {name: performance(rate, 64 if name == "few" else 128) for name, rate in rates.items()}
    return shown_of(section, write_sweep(tuple(trials.values()), how, plan=tuple(trials.values()), mode="cluster"))


def test_more_devices_are_faster_and_fewer_are_cheaper_so_no_other_beats_both(write_sweep: WriteSweep) -> None:
    found = measured(write_sweep, few=1000.0, many=1500.0, slow=1200.0)
    rows = {row["layout"]: row["beaten by none"] for row in rows_of(found, "cost")}
    assert rows == {"tp8-pp16-dp1-mb1-gb8": "yes", "tp4-pp16-dp1-mb1-gb8": "yes", "tp4-pp16-dp2-mb1-gb8": ""}
    assert found.finding.startswith("Measured: a trillion tokens of made-up-175b as `tp4-pp16-dp1-mb1-gb8` take")
    assert found.numbers_are == "measured"
    (plot,) = plots_of(found)
    assert "dollars" in drawn(plot)


def test_the_figures_follow_from_the_rate_the_price_the_declared_watts_and_the_grid(write_sweep: WriteSweep) -> None:
    """At 1,000 tokens a second: 11,574 days of 64 devices at 2 dollars an hour and 400 W, and 500 g a kWh."""
    rows = rows_of(measured(write_sweep, few=1000.0, many=1500.0), "cost")
    row = next(row for row in rows if row["devices"] == "64")
    hours = 64 * 24 * DAYS / 1000.0
    assert row["days"] == "11,600"
    assert row["device-hours"] == f"{float(f'{hours:.3g}'):,.0f}"
    assert row["dollars"] == f"{float(f'{2 * hours:.3g}'):,.0f}"
    assert row["MWh"] == f"{float(f'{400 * hours / 1e6:.3g}'):,.0f}"
    assert row["tonnes CO2"] == f"{float(f'{0.5 * 400 * hours / 1e6:.3g}'):,.0f}"
    assert "MWh of the site" not in row


def test_every_declared_number_stands_with_its_source(write_sweep: WriteSweep) -> None:
    said = text_of(measured(write_sweep, few=1000.0))
    assert "made-up device: 400 W (made up); 2 dollars a device-hour (made up)" in said
    assert "Grid: 500 g CO2/kWh (made up). PUE: not declared (`cluster.site.power_usage_effectiveness`)." in said


def test_ranks_that_shared_devices_are_paid_for_once(write_sweep: WriteSweep) -> None:
    shared = performance(1000.0, 2)
    found = shown_of(section, write_sweep((FEW,), {"few": shared}, plan=(FEW,), mode="cluster"))
    assert {row["devices"] for row in rows_of(found, "cost")} == {"2"}
    assert "on 2 devices" in found.finding


def test_energy_that_counters_measured_takes_the_estimates_place(write_sweep: WriteSweep) -> None:
    """7.2 J a token are 2,000 MWh for a trillion."""
    counted = {"energy_joules_per_token": 7.2, "energy_joules_per_step": 7.2 * 256}
    how = {"few": performance(1000.0, 64, **counted), "many": performance(1500.0, 128, **counted)}
    found = shown_of(section, write_sweep((FEW, MANY), how, plan=(FEW, MANY), mode="cluster"))
    assert {row["MWh"] for row in rows_of(found, "cost")} == {"2,000"}
    assert "2,000 MWh (counted)" in found.finding
    assert rows_of(found, "energy-counted")[0]["J/token"] == "7.20"


def test_one_point_may_be_the_best_in_all_and_needs_no_plot(write_sweep: WriteSweep) -> None:
    found = measured(write_sweep, many=1500.0, slow=1200.0)
    assert "Of 2 points it takes the least time, money and energy." in found.finding
    assert plots_of(found) == []


def test_the_least_is_said_only_of_what_no_other_point_takes_less_of(write_sweep: WriteSweep) -> None:
    found = measured(write_sweep, few=1000.0, many=1500.0, slow=1200.0)
    assert found.finding.endswith("Of 3 points it takes the least money and energy.")


def test_the_most_frugal_point_takes_the_least_money_though_a_slower_one_takes_less_energy(
    write_sweep: WriteSweep,
) -> None:
    device = PLACE.device.model_copy(update={"watts": 40.0, "price_per_hour": 2.4})
    place = PLACE.model_copy(update={"name": "sparing", "device": device})
    sparing = trial("sparing", world_size=16, **(SIZES | {"cluster": place}))
    how = {"many": performance(2400.0, 128), "sparing": performance(250.0, 16)}
    found = shown_of(section, write_sweep((MANY, sparing), how, plan=(MANY, sparing), mode="cluster"))
    assert found.finding.endswith("Of 2 points it takes the least time and money.")


def test_without_a_price_money_is_left_out(write_sweep: WriteSweep) -> None:
    device = cluster().device.model_copy(update={"price_per_hour": None})
    free: dict[str, Any] = {"model": FULL, "cluster": cluster().model_copy(update={"device": device})}
    plan = [
        trial(name, world_size=size, tensor_parallel_size=4, pipeline_parallel_size=16, **free)
        for name, size in (("few", 64), ("many", 128))
    ]
    found = shown_of(section, write_sweep((), plan=plan))
    assert found.numbers_are == "predicted"
    assert "dollars" not in found.finding
    assert "no price" in text_of(found)
    assert all("dollars" not in row for row in rows_of(found, "cost"))


def test_a_proxys_steps_say_nothing_of_a_trillion_tokens(write_sweep: WriteSweep) -> None:
    small = trial("base")
    how = {"base": performance(100.0)}
    beside_a_plan = shown_of(section, write_sweep([small], how, plan=(FEW,)))
    assert beside_a_plan.numbers_are == "predicted"
    assert section(subject_of(write_sweep([small], how))) is None
