"""What torchtitan's selection of operators computes again."""

from __future__ import annotations

import pytest

from tests.train_core.costs.priced import setting_of, shard_of, with_efficiency
from train_core.costs.layer.context import core_seconds
from train_core.costs.layer.layer_costs import layer_costs
from train_core.costs.layer.layer_time import selected_seconds
from train_core.costs.setting import Setting


def setting(trainer: str = "torchtitan") -> Setting:
    return setting_of("llama-3.1-8b", "dgx-h100", trainer=trainer)


def test_the_core_is_not_repeated_by_a_trainer_that_keeps_its_output() -> None:
    assert core_seconds(setting(), shard_of(1, 2, recompute="selective")).repeated == 0
    assert core_seconds(setting("megatron-core"), shard_of(1, 2, recompute="selective")).repeated > 0


def test_about_a_third_of_the_products_is_made_again() -> None:
    """Keys, attention's projection and half of the way up: (1024 + 4096 + 14336) of 53248 columns."""
    products = with_efficiency(setting(), memory=1e9, kernel_seconds=0.0)
    again = selected_seconds(products, shard_of(1, 2, recompute="selective"))
    whole = layer_costs(products, shard_of(1, 2)).weight_gradient_seconds
    assert again / whole == pytest.approx((1024 + 4096 + 14336) / 53248, rel=0.03)


def test_whole_layers_and_nothing_are_repeated_as_ever() -> None:
    for recompute in ("none", "full"):
        assert selected_seconds(setting(), shard_of(1, 2, recompute=recompute)) == 0


def test_gathers_are_made_again_and_scatters_are_not() -> None:
    none, selective, full = (
        layer_costs(setting(), shard_of(8, 1, sequence_parallel=True, recompute=name)).tensor_backward_seconds
        for name in ("none", "selective", "full")
    )
    assert 2 * (selective - none) == pytest.approx(full - none)
