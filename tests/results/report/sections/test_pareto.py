"""Time, money and energy of a trillion tokens. Every measured number is MADE UP for the test."""

from __future__ import annotations

from typing import Any

import pytest

from results.report.section import Section
from results.report.sections.pareto import section
from sweeps.trial import Trial
from tests.results.conftest import FULL, WriteSweep, cluster, performance, trial
from tests.results.report.sections.conftest import drawn, plots_of, rows_of, subject_of, text_of

FEW = trial("few", model=FULL, world_size=64, tensor_parallel_size=4, pipeline_parallel_size=16)
MANY = trial("many", model=FULL, world_size=128, tensor_parallel_size=8, pipeline_parallel_size=16)
SLOW = trial("slow", model=FULL, world_size=128, tensor_parallel_size=4, pipeline_parallel_size=16)
DAYS = 1e12 / 86_400


def measured(write_sweep: WriteSweep, **rates: float) -> Section:
    """Trials with these tokens a second."""
    trials = {each.trial_id: each for each in (FEW, MANY, SLOW)}
    how = {name: performance(rate, 64 if name == "few" else 128) for name, rate in rates.items()}
    found = section(subject_of(write_sweep(tuple(trials.values()), how, plan=tuple(trials.values()), mode="cluster")))
    assert found is not None
    return found


def test_more_devices_are_faster_and_fewer_are_cheaper_so_both_are_on_the_front(write_sweep: WriteSweep) -> None:
    found = measured(write_sweep, few=1000.0, many=1500.0, slow=1200.0)
    rows = {row["layout"]: row for row in rows_of(found, "pareto-front")}
    assert {name: row["front"] for name, row in rows.items()} == {
        "tp4-pp16-dp1-mb1-gb8": "yes",
        "tp8-pp16-dp1-mb1-gb8": "yes",
        "tp4-pp16-dp2-mb1-gb8": "",
    }
    assert "2 of 3 points are beaten by no other" in found.finding
    assert found.numbers_are == "measured"


def test_the_figures_follow_from_the_rate_the_price_and_the_declared_watts(write_sweep: WriteSweep) -> None:
    """At 1,000 tokens a second: 11,574 days of 64 devices at 2 dollars an hour and 400 W."""
    row = next(
        row for row in rows_of(measured(write_sweep, few=1000.0, many=1500.0), "pareto-front") if row["devices"] == "64"
    )
    hours = 24 * DAYS / 1000.0
    assert row["days"] == "11,574"
    assert row["dollars"] == f"{2 * 64 * hours:,.0f}"
    assert row["MWh"] == f"{400 * 64 * hours / 1e6:,.0f}"


def test_energy_says_that_it_is_an_estimate(write_sweep: WriteSweep) -> None:
    found = measured(write_sweep, few=1000.0, many=1500.0)
    assert "Energy is an estimate and was not metered" in text_of(found)
    assert "made-up device: 400 W" in text_of(found)


def test_energy_that_counters_measured_takes_the_estimates_place(write_sweep: WriteSweep) -> None:
    """7.2 J a token are 2,000 MWh for a trillion."""
    metered = {"energy_joules_per_token": 7.2}
    how = {"few": performance(1000.0, 64, **metered), "many": performance(1500.0, 128, **metered)}
    found = section(subject_of(write_sweep((FEW, MANY), how, plan=(FEW, MANY), mode="cluster")))
    assert found is not None
    assert {row["MWh"] for row in rows_of(found, "pareto-front")} == {"2,000"}
    assert "(metered)" in found.finding
    assert "estimate" not in text_of(found)


def test_one_point_may_be_the_best_in_all(write_sweep: WriteSweep) -> None:
    found = measured(write_sweep, many=1500.0, slow=1200.0)
    assert "Of 2 points `tp8-pp16-dp1-mb1-gb8` takes the least time, money and energy" in found.finding


def test_the_front_can_be_drawn(write_sweep: WriteSweep) -> None:
    (plot,) = plots_of(measured(write_sweep, few=1000.0, many=1500.0, slow=1200.0))
    assert "dollars for a trillion tokens" in drawn(plot)


def test_without_a_price_money_is_left_out(write_sweep: WriteSweep) -> None:
    device = cluster().device.model_copy(update={"price_per_hour": None})
    free: dict[str, Any] = {"model": FULL, "cluster": cluster().model_copy(update={"device": device})}
    plan = [
        trial(name, world_size=size, tensor_parallel_size=4, pipeline_parallel_size=16, **free)
        for name, size in (("few", 64), ("many", 128))
    ]
    found = section(subject_of(write_sweep((), plan=plan)))
    assert found is not None
    assert found.numbers_are == "predicted"
    assert "money is left out" in text_of(found)
    assert {row["dollars"] for row in rows_of(found, "pareto-front")} == {"-"}
    (plot,) = plots_of(found)
    assert "MWh for a trillion tokens (estimated)" in drawn(plot)


@pytest.mark.parametrize("plan", [(), (FEW,)])
def test_fewer_than_two_points_leave_nothing_to_choose(write_sweep: WriteSweep, plan: tuple[Trial, ...]) -> None:
    assert section(subject_of(write_sweep((), plan=plan))) is None
