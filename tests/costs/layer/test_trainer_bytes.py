"""What the layers of single trainers keep, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conf.types.schema import MatmulRecipe
from conf.units import GIBIBYTE
from costs.layer.layer_costs import layer_costs
from costs.layer.shard import Shard
from costs.setting import Setting
from costs.trainers import TORCHTITAN_EAGER
from costs.work import end_bytes
from tests.costs.priced import setting_of, shard_of, with_trainer

TOKENS, H, Q, KV, F = 2 * 8192, 4096, 4096, 1024, 14336  # of Llama 3.1 8B, with two sequences
TWO = shard_of(1, 2)


def llama(trainer: str, cluster: str = "dgx-h100") -> Setting:
    return setting_of("llama-3.1-8b", cluster, trainer=trainer)


def kept(setting: Setting, shard: Shard) -> int:
    return int(layer_costs(setting, shard).kept_bytes[0])


def test_megatron_core_keeps_queries_and_keys_twice_because_values_stay_a_view_of_their_product() -> None:
    more = kept(llama("megatron-core"), TWO) - kept(llama("fsdp"), TWO)
    assert more == TOKENS * (Q + KV) * 2


def test_learned_positions_turn_nothing() -> None:
    core, plain = (setting_of("gpt-22b", "selene", trainer=name) for name in ("megatron-core", "fsdp"))
    assert kept(core, shard_of(8)) == kept(plain, shard_of(8))


@pytest.mark.parametrize(("recipe", "num_bits"), [("fp8-delayed", 8), ("mxfp8", 8.25), ("nvfp4", 4.5)])
def test_inputs_of_narrow_products_are_kept_as_these_take_them(recipe: MatmulRecipe, num_bits: float) -> None:
    """Both norms' outputs and the activation's in fewer bits; of attention's output there is a narrow copy more.

    A scale of 8 bits goes with 32 or with 16 elements.
    """
    wide = llama("megatron-core", "gb200-nvl72")
    less = kept(wide, TWO) - kept(replace(wide, matmul_recipe=recipe), TWO)
    assert less == TOKENS * ((2 * H + F) * (16 - num_bits) - Q * num_bits) // 8


def test_torchtitan_keeps_what_it_would_without_narrow_products() -> None:
    wide = llama("torchtitan")
    assert kept(replace(wide, matmul_recipe="fp8-tensorwise"), TWO) == kept(wide, TWO)


def test_torchtitans_selection_keeps_attentions_output_and_every_second_product() -> None:
    """Of an 8B with two sequences of 8,192: the input of the layer, queries, values, gate, attention's output."""
    selective = shard_of(1, 2, recompute="selective")
    assert kept(llama("torchtitan"), selective) == TOKENS * ((H + Q + KV + F + Q) * 2 + 32 * 4)
    assert kept(llama("torchtitan"), selective) / GIBIBYTE == pytest.approx(0.846, abs=0.001)


def test_layers_that_are_not_compiled_also_keep_the_way_down_which_backward_does_not_need() -> None:
    """0.971 GiB, as torch's own selective checkpoint keeps of a layer on fake tensors."""
    eager = with_trainer(llama("torchtitan"), **TORCHTITAN_EAGER.model_dump())
    assert kept(eager, shard_of(1, 2, recompute="selective")) / GIBIBYTE == pytest.approx(0.971, abs=0.001)


@pytest.mark.parametrize(
    ("trainer", "tensor", "num_bytes"),
    [
        ("fsdp", 1, 2 + 2),  # the gradient, made of the logits
        ("megatron-core", 8, 2 + 4),
        ("torchtitan", 1, 2 + 3 * 4),
        ("torchtitan", 8, 2 + 4 * 4),
    ],
)
def test_a_logit_takes_as_many_copies_as_the_trainers_loss_makes(trainer: str, tensor: int, num_bytes: int) -> None:
    setting, shard = llama(trainer), shard_of(tensor, 2, sequence_parallel=tensor > 1)
    end, _, _ = end_bytes(setting, shard, layer_costs(setting, shard))
    assert end.logits[0] == TOKENS * setting.model.vocab_size // tensor * num_bytes
