"""Recipes of narrow products go with devices that have a peak for them."""

from __future__ import annotations

import pytest

from conf.errors import InfeasiblePlan
from conf.plan.setup import Setup
from tests.composed import setup_of
from tests.messages import refused

JOB = ("model=gpt-22b", "precision=bf16", "parallel.world_size=64", "batch.global_batch_size=64")


def setup_on(cluster: str, *overrides: str) -> Setup:
    return setup_of([f"cluster={cluster}", *JOB, *overrides])


@pytest.mark.parametrize(
    ("precision", "recipe"), [("bf16", None), ("fp8", "fp8-tensorwise"), ("mxfp8", "mxfp8"), ("nvfp4", "nvfp4")]
)
def test_blackwell_has_every_precision(precision: str, recipe: str | None) -> None:
    chosen = setup_on("gb200-nvl72", f"precision={precision}").precision
    assert (chosen.dtype, chosen.matmul_recipe) == ("bf16", recipe)


@pytest.mark.parametrize(
    ("cluster", "recipe"),
    [
        ("selene", "fp8-delayed"),
        ("dgx-h100", "nvfp4"),
        ("dgx-h100", "mxfp8"),
    ],
)
def test_a_device_without_the_peak_refuses_the_recipe(cluster: str, recipe: str) -> None:
    with refused(InfeasiblePlan, "precision.matmul_recipe"):
        setup_on(cluster, f"precision.matmul_recipe={recipe}")


def test_weights_of_32_bits_are_not_cast_that_far() -> None:
    with refused(InfeasiblePlan, "precision.matmul_recipe"):
        setup_on("dgx-h100", "precision=fp32", "precision.matmul_recipe=fp8-delayed")


def test_utilization_is_stated_against_the_peak_of_the_weights() -> None:
    wide, narrow = (setup_on("dgx-h100", f"precision={name}") for name in ("bf16", "fp8"))
    assert narrow.peak_flops_per_second == wide.peak_flops_per_second
