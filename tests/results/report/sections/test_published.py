"""The table of published figures."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from conf.folders import conf_dir
from results.report.sections.published import chosen_figures, published_figures, published_table
from tests.composed import load
from tests.messages import refused
from tests.results.conftest import WriteSweep


def test_the_frontier_headline_figures_are_hardware_flops_per_gcd() -> None:
    figures = chosen_figures(["frontier-22b", "frontier-175b", "frontier-1t"])
    assert [figure.tflops_per_device for figure in figures] == [73.5, 69.2, 61.2]
    assert {figure.flops_kind for figure in figures} == {"hardware"}
    assert {figure.confirmed for figure in figures} == {"partial"}


@pytest.mark.parametrize("figure", published_figures().values(), ids=lambda figure: figure.id)
def test_printed_throughput_and_share_of_the_peak_agree(figure: object) -> None:
    """Sources round the percentage; half a point either way."""
    row = published_figures()[figure.id]  # type: ignore[attr-defined]
    if row.tflops_per_device is None or row.percent_of_peak is None:
        return
    assert row.peak_tflops_per_device is not None
    assert 100 * row.tflops_per_device / row.peak_tflops_per_device == pytest.approx(row.percent_of_peak, abs=0.51)


@pytest.mark.parametrize("figure", published_figures().values(), ids=lambda figure: figure.id)
def test_parallel_sizes_multiply_to_the_devices(figure: object) -> None:
    row = published_figures()[figure.id]  # type: ignore[attr-defined]
    sizes = (row.tensor_parallel_size, row.pipeline_parallel_size, row.data_parallel_size)
    if None not in sizes:
        tensor, pipeline, data = (size or 0 for size in sizes)
        assert tensor * pipeline * data == row.num_devices


def test_an_unknown_id_is_refused_with_the_nearest_and_all_known_ones() -> None:
    with refused(ConfigError, "sweep.published"):
        chosen_figures(["frontier-175"])


@pytest.mark.slow
def test_every_sweep_asks_for_figures_that_exist() -> None:
    for path in (conf_dir() / "sweep").glob("[!_]*.yaml"):
        spec = load([f"sweep={path.stem}"]).sweep
        assert spec is not None
        chosen_figures(spec.published)


def test_a_row_that_is_not_confirmed_says_so_wherever_it_is_shown(write_sweep: WriteSweep) -> None:
    table = published_table(chosen_figures(["frontier-175b-recipe"]), write_sweep([]).record, [])
    assert "unconfirmed" in table.markdown()
