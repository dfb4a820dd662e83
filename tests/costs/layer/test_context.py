"""Context parallelism: what a rank holds and sends, and what shows of it beside the attention core."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conf.types.model_spec import AttentionWindowSpec
from costs.counts.flops import attention_core_forward_flops
from costs.layer.context import (
    block_seconds,
    buffer_bytes,
    core_forward,
    core_seconds,
    exchange_seconds,
    exchanged_bytes,
)
from costs.layer.layer_costs import layer_costs
from costs.setting import SCALE, Setting
from tests.costs.priced import (
    setting_of,
    shard_of,
    stage_memories,
    with_efficiency,
    with_links,
    with_trainer,
)

S, GROUPS, HEAD, WIDTH = 8192, 8, 128, 2  # of Llama 3.1 70B in bf16


@pytest.fixture
def megatron() -> Setting:
    return setting_of("llama-3.1-70b", "dgx-h100", trainer="megatron-core")


def test_two_context_ranks_keep_half_of_what_one_keeps(megatron: Setting) -> None:
    whole, half = (layer_costs(megatron, shard_of(4, context_parallel_size=c, sequence_parallel=True)) for c in (1, 2))
    assert half.kept_bytes[0] * 2 == whole.kept_bytes[0]


def test_a_rank_passes_on_the_keys_and_values_of_its_own_tokens(megatron: Setting) -> None:
    shard = shard_of(4, context_parallel_size=2)
    assert exchanged_bytes(megatron, shard)[0] == S // 2 * 2 * GROUPS * HEAD * WIDTH // 4
    assert buffer_bytes(megatron, shard)[0] == 2 * exchanged_bytes(megatron, shard)[0]
    assert buffer_bytes(megatron, shard_of(4))[0] == 0


def test_without_context_ranks_nothing_is_added_to_the_core(megatron: Setting) -> None:
    core = core_seconds(megatron, shard_of(4))
    assert core.forward[0] == core_forward(megatron, shard_of(4))[0]
    assert (core.exchange_forward, core.exchange_backward) == (0.0, 0.0)


def test_each_of_two_context_ranks_computes_half_of_the_core_and_adds_up_its_blocks(megatron: Setting) -> None:
    one, two = (float(core_seconds(megatron, shard_of(context_parallel_size=c)).forward[0]) for c in (1, 2))
    assert one / 2 < two < 0.6 * one


def test_of_a_hidden_hop_only_what_it_takes_from_the_core_shows(megatron: Setting) -> None:
    shard = shard_of(4, context_parallel_size=2)
    core = core_seconds(megatron, shard)
    shown, _ = exchange_seconds(megatron, shard, core.forward, core.backward)
    free = replace(megatron, scale=SCALE.model_copy(update={"shown": 0.0}))
    slow = with_links(free, bandwidth_bytes_per_second=1e-3)
    assert exchange_seconds(free, shard, core.forward, core.backward)[0][0] == 0.0
    assert exchange_seconds(slow, shard, core.forward, core.backward)[0][0] > shown[0] > 0.0


def test_keys_gathered_at_once_show_more_than_keys_that_go_round(megatron: Setting) -> None:
    shard = shard_of(8, context_parallel_size=8)  # beyond a node
    core = core_seconds(megatron, shard)
    ring, gather = (
        exchange_seconds(with_trainer(megatron, context_ring=ring), shard, core.forward, core.backward)[1][0]
        for ring in (True, False)
    )
    assert gather > ring


def test_torchs_context_ranks_gather_the_keys_and_values_of_all_heads() -> None:
    """64 query heads have 8 groups of keys and values, which torchtitan repeats before it shares out the core."""
    torchtitan = setting_of("llama-3.1-70b", "dgx-h100", trainer="torchtitan")
    shard = shard_of(8, context_parallel_size=4)
    assert exchanged_bytes(torchtitan, shard)[0] == S // 4 * 2 * 64 * HEAD * WIDTH // 8


def test_torchs_gradients_go_round_in_fp32_the_last_hop_beside_nothing() -> None:
    """Eight context ranks of a node send 2 x 64 heads x 128 of 1,024 tokens, at 450 GB/s x what is reached of it."""
    setting = setting_of("llama-3.1-70b", "dgx-h100", trainer="torchtitan")
    free = replace(with_links(setting, latency_seconds=0.0), scale=SCALE.model_copy(update={"shown": 0.0}))
    shard, hidden = shard_of(context_parallel_size=8), np.array([1e9])
    there, back = exchange_seconds(free, shard, hidden, hidden)
    hop = S // 8 * 2 * 64 * HEAD * 4 / (450e9 * free.cluster.efficiency.link)
    assert (there[0], back[0]) == (0.0, pytest.approx(hop))


def test_torchs_blocks_are_merged_by_many_more_passes_through_memory() -> None:
    """41 bytes an element forward and 57 backward, where one fused sum in bf16 moves 6."""
    torchtitan = with_efficiency(setting_of("llama-3.1-70b", "dgx-h100", trainer="torchtitan"), kernel_seconds=0.0)
    ring = with_trainer(torchtitan, context_ring=True)
    shard = shard_of(8, context_parallel_size=4)
    forward, _ = block_seconds(torchtitan, shard)
    fused, _ = block_seconds(ring, shard)
    assert forward / fused == pytest.approx(41 / 6)


def test_gradients_and_optimizer_state_are_shared_out_over_context_ranks_too(megatron: Setting) -> None:
    data, context = (
        stage_memories(megatron, tensor_parallel_size=8, zero_stage=1, **sizes)
        for sizes in ({"data_parallel_size": 8}, {"data_parallel_size": 2, "context_parallel_size": 4})
    )
    assert context.optimizer_bytes[0] == data.optimizer_bytes[0]
    assert context.activations_bytes[0] * 4 == pytest.approx(data.activations_bytes[0])


def test_a_window_leaves_the_core_the_pairs_that_it_sees(megatron: Setting) -> None:
    whole = float(core_forward(megatron, shard_of())[0])
    start = megatron.cluster.efficiency.kernel_seconds
    assert float(core_forward(with_window(megatron, 128, 2), shard_of())[0]) - start == pytest.approx(
        (0.5 + 0.5 * (1 - (1 - 128 / S) ** 2)) * (whole - start)
    )
    assert float(core_forward(with_window(megatron, S, None), shard_of())[0]) == whole
    quarter = with_window(megatron, S // 4, None).model
    flops = attention_core_forward_flops(megatron.model, 1) * (1 - (3 / 4) ** 2)
    assert attention_core_forward_flops(quarter, 1) == flops


def with_window(setting: Setting, size: int, full_every: int | None) -> Setting:
    window = AttentionWindowSpec(size=size, full_every=full_every)
    return replace(setting, model=setting.model.model_copy(update={"attention_window": window}))
