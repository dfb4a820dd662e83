"""Matrix products in waves of tiles, and kernels bound by memory bandwidth, against arithmetic by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costs import kernels
from costs.kernels import (
    PROLOGUE,
    alignment_rate,
    attention_seconds,
    matmul_seconds,
    memory_bound_seconds,
)
from costs.setting import Setting
from tests.costs.priced import setting_of, with_device, with_efficiency

DEPTH = 8192
NUM_MULTIPROCESSORS = 108  # of an A100


@pytest.fixture
def ideal() -> Setting:
    """An A100 whose kernels start at once and reach every peak."""
    return with_efficiency(setting_of("gpt-175b", "selene"), matmul=1.0, attention=1.0, memory=1.0, kernel_seconds=0.0)


@pytest.fixture
def one_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that knows a single tile, so that nothing makes up for a bad shape."""
    monkeypatch.setattr(kernels, "TILES", ((256, 128, 1.0),))


@pytest.mark.usefixtures("one_tile")
def test_one_tile_more_than_a_wave_takes_two_waves(ideal: Setting) -> None:
    wave = matmul_seconds(ideal, 256, 128 * NUM_MULTIPROCESSORS, DEPTH)
    assert matmul_seconds(ideal, 256, 128 * (NUM_MULTIPROCESSORS + 1), DEPTH) == pytest.approx(2 * wave)


@pytest.mark.usefixtures("one_tile")
def test_a_whole_wave_takes_its_flops_over_the_peak_and_the_prologue(ideal: Setting) -> None:
    flops = 2 * 256 * 128 * NUM_MULTIPROCESSORS * (DEPTH + PROLOGUE)
    assert matmul_seconds(ideal, 256, 128 * NUM_MULTIPROCESSORS, DEPTH) == pytest.approx(flops / 312e12)


@pytest.mark.usefixtures("one_tile")
def test_half_of_the_bytes_of_a_result_that_is_added_up_shows_beside_the_products(ideal: Setting) -> None:
    sizes = 256, 128 * NUM_MULTIPROCESSORS
    more = matmul_seconds(ideal, *sizes, DEPTH, added_bytes=8) - matmul_seconds(ideal, *sizes, DEPTH)
    assert more == pytest.approx(0.5 * 8 * sizes[0] * sizes[1] / 2.039e12)


@pytest.mark.usefixtures("one_tile")
def test_bytes_that_decide_how_long_a_product_takes_are_counted_once(ideal: Setting) -> None:
    rows, columns, depth = 256, 128 * NUM_MULTIPROCESSORS, 64
    moved = 2 * depth * (rows + columns) + 8 * rows * columns
    assert matmul_seconds(ideal, rows, columns, depth, added_bytes=8) == pytest.approx(moved / 2.039e12)


@pytest.mark.usefixtures("one_tile")
def test_part_of_a_tile_takes_a_whole_one(ideal: Setting) -> None:
    sizes = (256, 128 * NUM_MULTIPROCESSORS), (129, 128 * NUM_MULTIPROCESSORS - 64)
    whole, part = (matmul_seconds(ideal, rows, columns, DEPTH) for rows, columns in sizes)
    assert part == whole


def test_smaller_tiles_make_up_for_part_of_a_second_wave(ideal: Setting) -> None:
    wave = matmul_seconds(ideal, 256, 128 * NUM_MULTIPROCESSORS, DEPTH)
    more = matmul_seconds(ideal, 256, 128 * (NUM_MULTIPROCESSORS + 1), DEPTH)
    assert 1.5 * wave < more < 2 * wave


@pytest.mark.usefixtures("one_tile")
def test_many_products_in_one_launch_share_their_waves(ideal: Setting) -> None:
    """Twelve heads of nine tiles fill one wave of 108; one head alone takes a wave of its own."""
    together, alone = (matmul_seconds(ideal, 768, 384, DEPTH, count) for count in (12, 1))
    assert together == alone


def test_a_product_that_fills_the_device_many_times_runs_near_the_efficiency() -> None:
    setting = setting_of("gpt-175b", "selene")
    flops = 2 * 32768**3
    rate = flops / matmul_seconds(setting, 32768, 32768, 32768)
    assert rate / 312e12 == pytest.approx(setting.cluster.efficiency.matmul, rel=0.02)


@pytest.mark.parametrize(("length", "kept"), [(64, 1.0), (192, 1.0), (32, 0.97), (48, 0.9), (1800, 0.5), (1801, 0.25)])
def test_a_row_length_keeps_the_rate_of_the_largest_power_of_two_that_divides_it(length: int, kept: float) -> None:
    assert alignment_rate(np.array(length)) == kept


@pytest.mark.parametrize("odd", ["columns", "depth"])
def test_rows_that_start_inside_a_cache_line_slow_a_product_down(ideal: Setting, odd: str) -> None:
    """8200 = 8 x 1025: neither fewer tiles nor fewer waves, but half of the rate."""
    sizes: dict[str, Any] = {"rows": 8192, "columns": 8256, "depth": 8256}
    aligned, odd_one = matmul_seconds(ideal, **sizes), matmul_seconds(ideal, **sizes | {odd: 8200})
    assert odd_one / aligned == pytest.approx(2, rel=0.02)


def test_a_thin_product_takes_as_long_as_its_bytes(ideal: Setting) -> None:
    """A matrix of 8192 x 8192 in bf16 times one row: read once at 2.039 TB/s."""
    moved = 2 * (8192 + 8192 * 8192 + 8192)
    assert matmul_seconds(ideal, 1, 8192, 8192) == pytest.approx(moved / 2.039e12)


def test_less_bandwidth_hurts_only_what_is_bound_by_it(ideal: Setting) -> None:
    half = with_device(ideal, memory_bandwidth_bytes_per_second=2.039e12 / 2)
    assert matmul_seconds(half, 1, 8192, 8192) == pytest.approx(2 * matmul_seconds(ideal, 1, 8192, 8192))
    assert matmul_seconds(half, 8192, 8192, 8192) == matmul_seconds(ideal, 8192, 8192, 8192)


def test_a_cpu_has_no_tiles_and_no_alignment() -> None:
    setting = setting_of("gpt-175b-proxy", "local", "fp32", "trisweep")
    efficiency, peak = setting.cluster.efficiency, setting.peak_flops_per_second
    flops = 2 * 1001 * 1003 * 1005
    expected = flops / (peak * efficiency.matmul) + efficiency.kernel_seconds
    assert matmul_seconds(setting, 1001, 1003, 1005) == pytest.approx(expected)


def test_every_kernel_pays_its_launch() -> None:
    setting = with_efficiency(setting_of("gpt-175b", "selene"), kernel_seconds=1e-3)
    assert memory_bound_seconds(setting, 0, 3) == pytest.approx(3e-3)
    assert matmul_seconds(setting, 1, 1, 1) == pytest.approx(1e-3, rel=0.01)
    assert attention_seconds(setting, 0) == pytest.approx(1e-3)


def test_memory_bound_kernels_run_at_the_share_of_bandwidth_that_they_reach(ideal: Setting) -> None:
    assert memory_bound_seconds(with_efficiency(ideal, memory=0.5), 2.039e12) == pytest.approx(2)


def test_a_fused_attention_kernel_has_its_own_share_of_the_peak(ideal: Setting) -> None:
    assert attention_seconds(with_efficiency(ideal, attention=0.25), 312e12) == pytest.approx(4)
