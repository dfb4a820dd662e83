"""The section on energy, money and carbon."""

from __future__ import annotations

from conf.cluster_spec import SiteSpec
from results.report.section import NamedTable, Paragraph, ReportSubject
from results.report.sections.energy import in_three_digits, section
from sweeps.sweep import Sweep
from tests.results.conftest import FULL, WriteSweep, cluster, performance, trial

SITE = SiteSpec(grid_co2_grams_per_kwh=500.0, grid_co2_source="made up")
PLACE = cluster().model_copy(update={"site": SITE})
PLANS = (
    trial("slow", model=FULL, cluster=PLACE, world_size=64, tensor_parallel_size=4, pipeline_parallel_size=16),
    trial("fast", model=FULL, cluster=PLACE, world_size=64, tensor_parallel_size=2, pipeline_parallel_size=16),
)


def rows(sweep: Sweep, name: str = "energy") -> list[list[str]]:
    made = section(ReportSubject(sweep, sweep.read()))
    assert made is not None
    tables = {block.name: block.table for block in made.blocks if isinstance(block, NamedTable)}
    return [[cell.text for cell in row] for row in tables[name].rows]


def test_the_best_plan_has_a_row_for_each_kind_of_time_and_energy(write_sweep: WriteSweep) -> None:
    """256 tokens a second on 64 devices of 400 W: 100 J a token, and 80 J by its counters."""
    counted = performance(256.0, 64, energy_joules_per_token=80.0, energy_joules_per_step=80.0 * 256)
    sweep = write_sweep(PLANS, {"fast": counted}, mode="cluster")
    found = rows(sweep)
    assert [row[1:3] for row in found] == [
        ["measured", "counted"],
        ["measured", "declared watts"],
        ["predicted", "declared watts"],
    ]
    assert found[0][3:] == ["69,400,000", "22,200", "-", "139,000,000", "11,100"]
    assert found[1][4] == "27,800"
    assert rows(sweep, "energy-counted")[0][1:4] == ["20,500", "80.0", "-"]


def test_the_finding_says_what_kind_its_numbers_are_and_the_page_where_they_are_from(write_sweep: WriteSweep) -> None:
    sweep = write_sweep(PLANS, mode="cluster")
    made = section(ReportSubject(sweep, sweep.read()))
    assert made is not None
    assert made.numbers_are == "predicted"
    assert "from a predicted step and the declared watts of the devices" in made.finding
    said = " ".join(block.text for block in made.blocks if isinstance(block, Paragraph))
    assert "400 W a device (made up); price 2 dollars a device-hour (made up)" in said
    assert "grid 500 g CO2/kWh (made up); PUE not declared (`cluster.site.power_usage_effectiveness`)" in said


def test_a_proxys_steps_say_nothing_of_a_trillion_tokens(write_sweep: WriteSweep) -> None:
    small = trial("base")
    assert [row[1] for row in rows(write_sweep([small], {"base": performance(100.0)}, plan=PLANS))] == ["predicted"]
    alone = write_sweep([small], {"base": performance(100.0)})
    assert section(ReportSubject(alone, alone.read())) is None


def test_numbers_have_three_digits_that_mean_something() -> None:
    assert [in_three_digits(value) for value in (1234567.0, 1439.03, 27.648, None)] == [
        "1,230,000",
        "1,440",
        "27.6",
        "-",
    ]
