"""Casts to 8 and 4 bits cost time, and narrow inputs save memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conf.types.schema import MatmulRecipe
from costs.layer.layer_bytes import kept_bytes, kept_difference
from costs.layer.layer_costs import layer_costs
from costs.layer.layer_time import backward_casts, forward_casts
from costs.layer.shard import Shard
from costs.setting import Setting
from tests.costs.priced import setting_of, shard_of, with_efficiency


def setting(recipe: MatmulRecipe | None, trainer: str = "megatron-core", cluster: str = "gb200-nvl72") -> Setting:
    """Kernels start at once, so that only bytes count."""
    started = with_efficiency(setting_of("gpt-175b", cluster, trainer=trainer), kernel_seconds=0.0)
    return replace(started, matmul_recipe=recipe)


def shard(**values: int | bool | str) -> Shard:
    return shard_of(tensor_parallel_size=4, micro_batch_size=1, **values)  # type: ignore[arg-type]


def test_wide_products_need_no_casts() -> None:
    assert forward_casts(setting(None), shard()) == 0.0
    assert backward_casts(setting(None), shard()) == 0.0


def test_finding_the_largest_value_first_costs_one_more_pass() -> None:
    """Delayed scaling reads 2 bytes and writes 1, current scaling reads twice."""
    delayed, current = (forward_casts(setting(name), shard()) for name in ("fp8-delayed", "fp8-tensorwise"))
    assert current / delayed == pytest.approx(5 / 3)


def test_hopper_transposes_what_blackwell_takes_as_it_is() -> None:
    hopper, blackwell = setting("fp8-delayed", cluster="dgx-h100"), setting("fp8-delayed")
    bandwidths = 8.0e12 / 3.35e12
    shares = blackwell.cluster.efficiency.memory / hopper.cluster.efficiency.memory
    assert forward_casts(hopper, shard()) / forward_casts(blackwell, shard()) == pytest.approx(
        (3 + 2) / 3 * bandwidths * shares
    )


def test_sequence_shards_are_cast_before_they_are_gathered() -> None:
    whole, sharded = (forward_casts(setting("fp8-delayed"), shard(sequence_parallel=on)) for on in (False, True))
    assert sharded / whole == pytest.approx((2 / 4 + 1 / 4 + 1) / (2 + 1 / 4 + 1))


def test_inputs_that_are_kept_wide_are_cast_again() -> None:
    again = backward_casts(setting("fp8-tensorwise", trainer="torchtitan"), shard())
    once = backward_casts(setting("fp8-tensorwise"), shard())
    assert again > once
    assert kept_bytes(setting("fp8-tensorwise", "torchtitan"), shard(), shard().recompute) == kept_bytes(
        setting(None, "torchtitan"), shard(), shard().recompute
    )


def test_narrow_inputs_are_kept_narrow() -> None:
    none = shard().recompute
    assert kept_bytes(setting("fp8-delayed"), shard(), none) < kept_bytes(setting(None), shard(), none)
    full = shard(recompute="full").recompute
    assert kept_bytes(setting("fp8-delayed"), shard(), full) == kept_bytes(setting(None), shard(), full)


def test_of_latent_attention_the_output_is_kept_in_the_width_that_it_has() -> None:
    deepseek = setting_of("deepseek-v3", "gb200-nvl72", trainer="megatron-core")
    narrow, model, one = replace(deepseek, matmul_recipe="fp8-delayed"), deepseek.model, shard_of()
    saved = model.seq_length * (2 * model.hidden_size + model.ffn_hidden_size)
    assert kept_difference(narrow, one)[0] == model.seq_length * model.attended_size - saved


def test_a_layer_is_faster_in_fewer_bits_but_by_less_than_its_products() -> None:
    wide, fp8, fp4 = (
        layer_costs(setting(recipe), shard(sequence_parallel=True)).forward_seconds.item()
        for recipe in (None, "mxfp8", "nvfp4")
    )
    assert wide / 2 < fp8 < wide
    assert fp8 / 2 < fp4 < fp8
