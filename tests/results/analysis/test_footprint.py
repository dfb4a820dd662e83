"""Energy, money and carbon of a token, each from what it says it is from."""

from __future__ import annotations

import pytest

from conf.types.cluster_spec import ClusterSpec, SiteSpec
from results.analysis.footprint import best_known_footprint, counted_footprint, declared_footprint
from results.analysis.scaling import scalings
from results.tables.trial_rows import plan_row, trial_row
from tests.results.conftest import WriteSweep, cluster, experiment, made_up_estimate, performance, trial

SITE = SiteSpec(grid_co2_grams_per_kwh=500.0, power_usage_effectiveness=1.2)


def at(site: SiteSpec) -> ClusterSpec:
    return cluster().model_copy(update={"site": site})


def test_declared_watts_are_drawn_all_the_time() -> None:
    """Two devices of 400 W and 100 tokens a second: 8 J a token."""
    found = declared_footprint(experiment(world_size=2, cluster=at(SITE)), performance(100.0, 2))
    assert (found.energy_is, found.time_is) == ("declared watts", "measured")
    assert found.joules_per_token == 8.0
    assert found.kwh(3.6e6) == pytest.approx(8.0)
    assert found.device_hours(3.6e5) == pytest.approx(2.0)
    assert found.dollars(3.6e5) == pytest.approx(4.0)
    assert found.site_kwh(3.6e6) == pytest.approx(9.6)
    assert found.tonnes_co2(3.6e9) == pytest.approx(8000 * 1.2 * 500 / 1e6)


def test_counted_joules_replace_the_declared_ones_and_say_so() -> None:
    counted = performance(100.0, 2, energy_joules_per_token=5.0)
    found = best_known_footprint(experiment(world_size=2), counted)
    assert (found.energy_is, found.joules_per_token) == ("counted", 5.0)
    assert counted_footprint(experiment(), performance(100.0)) is None


def test_nothing_is_made_up_where_nothing_is_declared() -> None:
    device = cluster().device.model_copy(update={"price_per_hour": None})
    place = cluster().model_copy(update={"device": device})
    found = declared_footprint(experiment(cluster=place), performance(100.0))
    assert (found.dollars(1e12), found.tonnes_co2(1e12), found.site_kwh(1e12)) == (None, None, None)
    bare = declared_footprint(experiment(cluster=at(SiteSpec(grid_co2_grams_per_kwh=500.0))), performance(100.0))
    assert bare.tonnes_co2(1e9) == pytest.approx(bare.kwh(1e9) * 500 / 1e6)


def test_rows_keep_counted_estimated_and_predicted_energy_apart(write_sweep: WriteSweep) -> None:
    trials = [trial("counted", cluster=at(SITE)), trial("not", world_size=2, tensor_parallel_size=2, cluster=at(SITE))]
    counted = performance(100.0, energy_joules_per_token=1.0, energy_joules_per_step=256.0)
    sweep = write_sweep(trials, {"counted": counted, "not": performance(100.0, 2)})
    results = sweep.read()
    first, second = (trial_row(*pair) for pair in zip(results, scalings(results), strict=True))
    assert (first["measured_energy_joules_per_token"], second["measured_energy_joules_per_token"]) == (1.0, None)
    assert (first["estimated_joules_per_token"], second["estimated_joules_per_token"]) == (4.0, 8.0)
    assert (first["estimated_co2_from"], second["estimated_co2_from"]) == ("counted", "declared watts")
    assert second["estimated_grams_co2_per_million_tokens"] == pytest.approx(8e6 / 3.6e6 * 1.2 * 500)
    value = experiment(cluster=at(SITE))
    assert plan_row(trials[0], "a")["predicted_joules_per_token"] == 400 / made_up_estimate(value).tokens_per_second
    assert "estimated_joules_per_token" not in plan_row(trials[0], "a")
