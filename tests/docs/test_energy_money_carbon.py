"""The worked examples on energy, money and carbon, computed again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conf.compose.load import load, load_cluster
from costs import IMPLEMENTATIONS, estimate
from results.analysis.footprint import Footprint, declared_footprint

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "energy-money-carbon.md"
TRILLION = 1e12
RECIPE = ["model=gpt-175b", "cluster=frontier", "parallel=frontier-175b", "batch=frontier-175b", "precision=fp16"]


def row(name: str) -> list[float]:
    """The numbers of a row of a table of the page."""
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name}"))
    numbers = [re.search(r"[\d,.]+", cell) for cell in line.strip("| ").split("|")[1:]]
    scale = [1e6 if "million" in cell else 1.0 for cell in line.strip("| ").split("|")[1:]]
    return [float(found[0].replace(",", "")) * by for found, by in zip(numbers, scale, strict=True) if found]


def test_a_trillion_tokens_of_the_175b_at_the_published_rate() -> None:
    experiment = load([*RECIPE, "data=synthetic", "cluster.device.price_per_hour=1"]).experiment()
    predicted = estimate(experiment, IMPLEMENTATIONS["megatron-deepspeed"])
    flops_per_token = predicted.hardware_flops / (experiment.batch.global_batch_size * experiment.model.seq_length)
    assert flops_per_token == pytest.approx(1.434e12, rel=1e-3)
    seconds = flops_per_token / 69.2e12
    site = experiment.cluster.site
    found = Footprint("declared watts", "published", 1, 250.0 * seconds, seconds, experiment.price_per_hour, site)
    assert_column(found, 0, rel=2e-3)


def test_a_trillion_tokens_of_the_175b_as_predicted() -> None:
    experiment = load([*RECIPE, "data=synthetic", "cluster.device.price_per_hour=1"]).experiment()
    predicted = estimate(experiment, IMPLEMENTATIONS["megatron-deepspeed"])
    assert row("hardware TFLOPS per GCD")[1] == pytest.approx(
        predicted.hardware_flops_per_second_per_device / 1e12, rel=1e-3
    )
    assert_column(declared_footprint(experiment, predicted), 1, rel=1e-3)


def assert_column(found: Footprint, column: int, rel: float) -> None:
    assert row("GCD-hours")[column] == pytest.approx(found.device_hours(TRILLION), rel=rel)
    assert row("MWh")[column] == pytest.approx(found.kwh(TRILLION) / 1000, rel=rel)
    assert row("dollars at 1.00")[column] == pytest.approx(found.dollars(TRILLION), rel=rel)
    assert row("tonnes of CO2 at 283.5")[column] == pytest.approx(found.tonnes_co2(TRILLION), rel=rel)


def test_the_grid_of_frontier_is_what_the_page_says_of_it() -> None:
    site = load_cluster("frontier").site
    assert site.grid_co2_grams_per_kwh == pytest.approx(624.94 * 0.45359237, abs=0.05)
    assert "Tennessee Valley Authority" in site.grid_co2_source
    assert "Tennessee Valley Authority" in PAGE.read_text()
