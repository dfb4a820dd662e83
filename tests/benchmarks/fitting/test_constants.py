"""The constants that are fitted: where they go in the cost model, and where they are written."""

from __future__ import annotations

import pytest

from benchmarks.fitting.constants import (
    chip_of,
    chip_values,
    constants_with,
    fitted_constants,
    number_text,
    places_of,
    prior_values,
    with_number,
)
from benchmarks.published_rows import measured_rows, says_little, series_weights
from calibrate.refit_cluster import PricedRuns
from conf.folders import options
from costs import estimate
from costs.setting import Setting
from costs.trainers import IMPLEMENTATIONS
from sweeps.table.prices import PricedRow
from tests.composed import load, load_cluster


def setting_on(cluster: str, trainer: str) -> Setting:
    model = load(["model=gpt-22b"]).model
    return Setting(model, load_cluster(cluster), "bf16", IMPLEMENTATIONS[trainer])


@pytest.mark.slow
def test_every_constant_is_stated_once_in_the_place_where_it_is_written() -> None:
    for place in places_of(prior_values()):
        with_number(place.path.read_text(), place.field, place.value, place.part)


def test_a_chip_that_no_table_shows_has_what_all_gpus_share() -> None:
    values = prior_values()
    assert chip_values(values, "v100")["memory"] == values["gpus.memory"]
    assert chip_values({**values, "a100.memory": 1.1}, "a100")["memory"] == pytest.approx(1.1 * values["gpus.memory"])


def test_a_chip_whose_libraries_are_good_in_all_shapes_has_its_fastest_product_for_a_prior() -> None:
    """H100: 0.803 of the peak, of which GPUs in common reach 0.8; MI250X has a factor of other makers' beside it."""
    values = prior_values()
    assert chip_values(values, "h100")["matmul"] == pytest.approx(values["gpus.matmul"] * 0.803 / 0.8)
    of_others = values["gpus.matmul"] * 0.767 / 0.8 * values["other-makers.matmul"]
    assert chip_values(values, "mi250x")["matmul"] == pytest.approx(of_others)
    assert chip_values({**values, "blackwell.matmul": 0.9}, "b200")["matmul"] == pytest.approx(0.776 * 0.9)


def test_attention_on_blackwell_begins_with_what_was_measured_beside_hopper() -> None:
    values = prior_values()
    assert chip_values(values, "gb200")["attention"] == pytest.approx(0.84 * chip_values(values, "h100")["attention"])


def test_a_machine_whose_products_were_measured_keeps_them() -> None:
    """SimuMax's node with B200: its authors published how fast its products are."""
    found = constants_with({**prior_values(), "b200.memory": 0.9}, setting_on("simumax-b200", "megatron-core"))
    assert found.efficiency.matmul == 0.488
    assert found.efficiency.memory == pytest.approx(0.9 * prior_values()["gpus.memory"])


def test_copies_that_somebody_measured_are_the_prior_of_a_chips_memory() -> None:
    values = prior_values()
    assert chip_values(values, "max1550")["memory"] == pytest.approx(values["gpus.memory"] * 0.61 / 0.85)


@pytest.mark.slow
def test_rows_that_say_what_else_took_the_time_weigh_nothing(priced: dict[str, PricedRow]) -> None:
    rows = measured_rows(priced)
    weights = dict(zip((row.place for row in rows), series_weights(rows), strict=True))
    of_tprimat = [weights[row.place] for row in rows if row.table == "tprimat"]
    assert of_tprimat == [0.0, 0.0]
    assert all(says_little(row) == (weights[row.place] == 0) for row in rows)


def test_constants_reach_the_chip_the_network_the_trainer_and_all() -> None:
    values = {**prior_values(), "network.infiniband": 0.7, "fsdp.memory_traffic": 2.2, "scale.shown": 0.5}
    found = constants_with(values, setting_on("selene", "fsdp"))
    assert found.efficiency.matmul == pytest.approx(values["gpus.matmul"] * values["a100.matmul"])
    assert (found.efficiency.link, found.implementation.memory_traffic, found.scale.shown) == (0.7, 2.2, 0.5)
    assert constants_with(values, setting_on("selene", "trisweep")).implementation == IMPLEMENTATIONS["trisweep"]


def test_a_machine_without_a_known_chip_keeps_its_constants() -> None:
    setting = setting_on("local", "trisweep")
    assert chip_of("local") is None
    assert constants_with(prior_values(), setting).efficiency == setting.cluster.efficiency


def test_every_name_is_that_of_a_group_that_exists_and_every_prior_lies_within_its_bounds() -> None:
    groups = {"scale", "gpus", "other-makers", "blackwell", "network", *options("efficiency"), *IMPLEMENTATIONS}
    for each in fitted_constants():
        assert each.group in groups
        assert each.lowest < each.prior <= each.highest
    assert len({each.name for each in fitted_constants()}) == len(fitted_constants())


def test_a_number_is_replaced_and_nothing_else() -> None:
    assert with_number("matmul: 0.77 # so\nlink: 1.0\n", "matmul", 0.5) == "matmul: 0.5 # so\nlink: 1.0\n"
    assert with_number('{"memory_traffic": 2.0,}', "memory_traffic", 1.234) == '{"memory_traffic": 1.23,}'
    assert with_number("Scale(shown=0.65, latency=1.6)", "latency", 2.0) == "Scale(shown=0.65, latency=2.0)"
    assert with_number("kernel_seconds: 5.0e-6\n", "kernel_seconds", 7e-6) == "kernel_seconds: 7.0e-6\n"
    three = "# All.\none:\n  rate: 1.0\n\ntwo:\n  rate: 1.0 # so\n\nthree:\n  rate: 1.0\n"
    assert with_number(three, "rate", 2.0, "two") == three.replace("1.0 # so", "2.0 # so")
    with pytest.raises(AssertionError, match="stated 0 times"):
        with_number("memory: 0.7", "matmul", 0.5)
    assert number_text(0.1) == "0.1"


@pytest.mark.thorough  # than costs, where a price is held for one plan and for many
@pytest.mark.slow
def test_rows_priced_together_cost_what_each_costs_alone(priced: dict[str, PricedRow]) -> None:
    rows = measured_rows(priced)
    together = PricedRuns([row.run for row in rows]).step_seconds()
    alone = [estimate(row.run.setup, row.run.implementation).step_seconds for row in rows]
    assert list(together) == pytest.approx(alone, rel=1e-9)


@pytest.mark.slow
def test_a_series_of_many_rows_weighs_as_their_root(priced: dict[str, PricedRow]) -> None:
    rows = measured_rows(priced)
    weights = dict(zip((row.place for row in rows), series_weights(rows), strict=True))
    bloom = [row for row in rows if row.table == "bloom"]
    assert (
        sum(weights[row.place] for row in bloom) < len(bloom) ** 0.5 * len({row.series for row in bloom}) ** 0.5 + 1e-9
    )
    assert all(weights[row.place] == 1 for row in rows if row.table == "sc21-table-1")
