"""Latent attention: its products, its core, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from costs.layer.context import core_forward
from costs.layer.layer_bytes import kept_bytes
from costs.layer.shard import paired_products_of, products_of
from costs.setting import Integers, Setting
from tests.costs.priced import setting_of, shard_of, with_efficiency, with_model, with_trainer

HEADS, HEAD, ROTARY, VALUE, QUERY_RANK, RANK = 128, 192, 64, 128, 1536, 512  # of DeepSeek-V2
H, F = 5120, 12288


@pytest.fixture
def deepseek() -> Setting:
    return with_model(setting_of("deepseek-v2", "dgx-h100", trainer="megatron-core"), experts=None)


def sizes(products: Iterable[tuple[Integers | int, Integers | int]]) -> list[tuple[int, int]]:
    """Columns and depth of each product of the only shard."""
    return [(int(np.max(columns)), int(np.max(depth))) for columns, depth in products]


def test_products_go_down_to_short_vectors_and_up_to_heads(deepseek: Setting) -> None:
    assert sizes(products_of(deepseek, shard_of(2)))[:4] == [
        (QUERY_RANK + RANK + ROTARY, H),  # the same on every tensor rank
        (HEADS * HEAD // 2, QUERY_RANK),
        (HEADS * (HEAD - ROTARY + VALUE) // 2, RANK),
        (H, HEADS * VALUE // 2),
    ]


def test_sequence_parallelism_leaves_each_rank_a_share_of_the_ways_down(deepseek: Setting) -> None:
    down = sizes(products_of(deepseek, shard_of(2, sequence_parallel=True)))[0]
    assert down == ((QUERY_RANK + RANK + ROTARY) // 2, H)


def test_collectives_run_beside_the_products_that_are_split(deepseek: Setting) -> None:
    pairs = sizes(paired_products_of(deepseek, shard_of(2, sequence_parallel=True)))
    assert [depth for _, depth in pairs] == [RANK, HEADS * VALUE // 2, H, F // 2]


def test_the_core_multiplies_long_queries_by_keys_and_short_values(deepseek: Setting) -> None:
    free = with_efficiency(deepseek, kernel_seconds=0.0)
    plain = with_model(free, latent_attention=None)  # heads of 192 throughout
    ratio = core_forward(free, shard_of())[0] / core_forward(plain, shard_of())[0]
    assert ratio == pytest.approx((HEAD + VALUE) / (2 * HEAD))


def test_a_layer_keeps_heads_short_vectors_and_hidden_states(deepseek: Setting) -> None:
    shard, trainer = shard_of(), with_trainer(deepseek, rotated_copies=False, log_sum_exp_bytes=0, norm_statistics=0)
    tokens, heads = deepseek.model.seq_length, HEADS * (2 * HEAD + 2 * VALUE)
    short = 2 * (QUERY_RANK + RANK) + ROTARY
    assert kept_bytes(trainer, shard, shard.recompute)[0] == 2 * tokens * (4 * H + heads + short + 3 * F)
