"""Products in 8 and 4 bits: their peak, their operands' bytes, and what is gathered narrow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conf.types.schema import MatmulRecipe
from costs.kernels import (
    HALVING_RATE,
    HALVING_RATE_OF_BLACKWELL,
    RECIPES,
    gathered_share,
    gathered_weight_bytes,
    matmul_seconds,
    recipe_of,
    wants_transposes,
)
from costs.setting import Setting
from tests.costs.priced import setting_of

LARGE = 32768


def narrow(recipe: MatmulRecipe, cluster: str = "gb200-nvl72", trainer: str = "megatron-core") -> Setting:
    return replace(setting_of("gpt-175b", cluster, trainer=trainer), matmul_recipe=recipe)


def flops_per_second(setting: Setting) -> float:
    return float(2 * LARGE**3 / matmul_seconds(setting, LARGE, LARGE, LARGE, recipe=recipe_of(setting)))


def test_without_a_recipe_products_are_those_of_the_weights() -> None:
    setting = setting_of("gpt-175b", "dgx-h100", trainer="megatron-core")
    assert recipe_of(setting) is None
    assert gathered_share(setting) == 1.0
    assert gathered_weight_bytes(setting) == 2.0


@pytest.mark.parametrize(("recipe", "times", "halvings"), [("fp8-tensorwise", 2, 1), ("mxfp8", 2, 1), ("nvfp4", 4, 2)])
def test_large_products_run_at_the_narrow_peak_less_what_feeding_it_costs(
    recipe: MatmulRecipe, times: int, halvings: int
) -> None:
    wide = flops_per_second(setting_of("gpt-175b", "gb200-nvl72", trainer="megatron-core"))
    expected = times * HALVING_RATE_OF_BLACKWELL**halvings * wide
    assert flops_per_second(narrow(recipe)) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("cluster", "share"),
    [("dgx-h100", 0.9), ("mi300x", 0.9), ("mi355x", 0.9), ("dgx-b200", 0.97), ("gb200-nvl72", 0.97)],
)
def test_fp8_reaches_more_of_its_peak_on_chips_that_multiply_in_four_bits(cluster: str, share: float) -> None:
    """As the fastest products that were measured: 0.88 to 0.93 on Hopper, 0.95 to 0.99 on Blackwell."""
    wide = flops_per_second(setting_of("gpt-175b", cluster, trainer="megatron-core"))
    assert flops_per_second(narrow("fp8-tensorwise", cluster)) == pytest.approx(2 * share * wide, rel=0.02)


def test_narrow_products_gain_less_where_they_are_shallow() -> None:
    """A tile's pipeline takes as many bytes to fill, which are more elements."""
    wide, fp8 = setting_of("gpt-175b", "dgx-h100", trainer="megatron-core"), narrow("fp8-delayed", "dgx-h100")

    def gain(depth: int) -> float:
        return float(
            matmul_seconds(wide, LARGE, LARGE, depth)
            / matmul_seconds(fp8, LARGE, LARGE, depth, recipe=RECIPES["fp8-delayed"])
        )

    assert gain(1024) < gain(8192) < 2 * HALVING_RATE


def test_a_weight_gradient_moves_what_was_added_up_before() -> None:
    setting = narrow("fp8-delayed", "dgx-h100")
    once = matmul_seconds(setting, 12288, 12288, 128, recipe=recipe_of(setting))
    added = matmul_seconds(setting, 12288, 12288, 128, recipe=recipe_of(setting), added_bytes=8)
    assert added > 2 * once


def test_one_scale_a_tensor_lets_ranks_gather_narrow_operands_and_weights() -> None:
    assert gathered_share(narrow("fp8-tensorwise")) == 0.5
    assert gathered_weight_bytes(narrow("fp8-tensorwise")) == 1.0
    assert gathered_share(narrow("mxfp8")) == 1.0
    assert gathered_weight_bytes(narrow("mxfp8")) == 2.0


def test_only_chips_without_products_in_four_bits_want_transposes() -> None:
    assert wants_transposes(setting_of("gpt-175b", "dgx-h100").cluster.device)
    assert not wants_transposes(setting_of("gpt-175b", "gb200-nvl72").cluster.device)
