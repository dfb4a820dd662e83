"""Predicted scaling curves."""

from __future__ import annotations

from typing import Any

import pytest

from conf.errors import ConfigError
from costs import IMPLEMENTATIONS
from costs.setting import Setting
from sweeps.planner.choosing.scaling import doublings, scaling_curve
from sweeps.planner.plans.space import Space
from sweeps.planner.plans.whole_space import search_space
from tests.composed import load, load_cluster
from tests.messages import refused

PLAIN: dict[str, Any] = {"context_parallel_size": 1, "recompute_every": 1, "layers_per_stage": None}
"""What leaves a quarter of the plans."""


def spaces(sizes: list[int], batch: int = 256, **pinned: object) -> list[Space]:
    setting = Setting(load(["model=gpt-22b"]).model, load_cluster("selene"), "bf16", IMPLEMENTATIONS["trisweep"])
    return [Space(setting, size, batch, pinned=pinned) for size in sizes]  # type: ignore[arg-type]


@pytest.mark.slow
def test_strong_scaling_keeps_the_batch_and_is_relative_to_the_smallest_that_fits() -> None:
    points = scaling_curve(spaces([4, 16, 64, 32], **PLAIN), "strong")
    assert [point.world_size for point in points] == [4, 16, 32, 64]
    assert {point.global_batch_size for point in points} == {256}
    assert points[0].candidate is None
    assert points[0].efficiency is None
    assert points[1].efficiency == 1
    for point, space in zip(points[1:], spaces([16, 32, 64], **PLAIN), strict=True):
        assert point.candidate is not None
        assert points[1].candidate is not None
        assert point.candidate.step_seconds == search_space(space, 1).step_seconds[0]
        perfect = points[1].candidate.step_seconds * 16 / point.world_size
        assert point.efficiency == pytest.approx(perfect / point.candidate.step_seconds)


def test_weak_scaling_grows_the_batch_with_the_devices() -> None:
    points = scaling_curve(spaces([16, 32, 64], **PLAIN), "weak")
    assert [point.global_batch_size for point in points] == [64, 128, 256]
    first = points[0].candidate
    assert first is not None
    for point in points:
        assert point.candidate is not None
        assert point.efficiency == pytest.approx(first.step_seconds / point.candidate.step_seconds)


def test_a_fixed_layout_scales_by_its_replicas_alone() -> None:
    layout: dict[str, Any] = {
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 4,
        "virtual_pipeline_size": 1,
        "schedule": "1f1b",
        "layers_per_stage": None,
        "sequence_parallel": True,
        "zero_stage": 1,
        "recompute": "none",
        "micro_batch_size": 1,
    }
    points = scaling_curve(spaces([32, 64, 128], **layout), "weak")
    assert [point.candidate and point.candidate.strategy.parallel.data_parallel_size for point in points] == [2, 4, 8]
    efficiencies = [point.efficiency or 0 for point in points]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert efficiencies[-1] > 0.9


def test_one_replica_with_a_pinned_zero_stage_is_on_the_curve() -> None:
    layout = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "zero_stage": 1}
    points = scaling_curve(spaces([16, 32, 64], **layout), "strong")
    strategies = [point.candidate.strategy for point in points if point.candidate]
    assert [one.parallel.data_parallel_size for one in strategies] == [1, 2, 4]
    assert {one.parallel.zero_stage for one in strategies} == {1}


def test_a_batch_that_cannot_be_shared_out_is_said_so() -> None:
    with refused(ConfigError, "batch.global_batch_size"):
        scaling_curve(spaces([16, 64], batch=255), "weak")


def test_nothing_that_fits_anywhere_is_said_so() -> None:
    with refused(ConfigError, "--scaling"):
        scaling_curve(spaces([1, 2]), "strong")


def test_devices_double_from_one_node() -> None:
    assert doublings(64, 8) == [8, 16, 32, 64]
    assert doublings(96, 8) == [24, 48, 96]
    assert doublings(4, 8) == [4]
