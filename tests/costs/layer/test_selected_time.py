"""What torchtitan's selection of operators computes again."""

from __future__ import annotations

import pytest

from costs import IMPLEMENTATIONS, estimate, hardware_flops, model_flops
from costs.layer.context import core_seconds
from costs.layer.layer_costs import layer_costs
from costs.layer.layer_time import selected_seconds
from costs.setting import Setting
from tests.composed import load
from tests.costs.priced import setting_of, shard_of, with_efficiency


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


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("seq_length", [8192, 131072])
def test_hardware_flops_count_the_products_that_are_made_again_and_no_core(name: str, seq_length: int) -> None:
    """Of the layers of Qwen3 these are attention's alone."""
    model = setting_of(name, "dgx-h100").model.model_copy(update={"seq_length": seq_length})
    up = 0 if model.experts else model.ffn_hidden_size
    each = model.hidden_size * (model.key_value_size + model.query_size + up)
    again = hardware_flops(model, 3, "selective", selects_operators=True) - model_flops(model, 3)
    assert again == model.num_layers * 2 * 3 * seq_length * each
    for recompute in ("none", "full", "pointwise"):
        assert hardware_flops(model, 3, recompute, selects_operators=True) == hardware_flops(model, 3, recompute)


def test_an_estimate_counts_what_its_trainer_makes_again() -> None:
    plan = ("parallel.world_size=8", "batch.global_batch_size=8", "parallel.recompute=selective")
    setup = load(["model=llama-3.1-8b", "cluster=dgx-h100", "precision=bf16", *plan]).experiment()
    counted = {name: estimate(setup, IMPLEMENTATIONS[name]).hardware_flops for name in ("torchtitan", "megatron-core")}
    products, core = (
        hardware_flops(setup.model, 8, "selective", selects_operators=selects) for selects in (True, False)
    )
    assert counted == {"torchtitan": products, "megatron-core": core}
    assert products != core
