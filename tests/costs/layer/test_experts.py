"""A layer with experts: what is sent, multiplied and kept, and ranks over which experts are spread."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conf.types.schema import ExpertDispatcher, MatmulRecipe
from costs import num_parameters
from costs.collectives import exchange_seconds
from costs.layer.experts import MOVES_KERNELS, ROUTING_KERNELS, expert_layer_costs, experts_of, route
from costs.layer.layer_costs import layer_costs
from costs.setting import Setting
from costs.stages import spread_stages
from costs.step.priced_stage import PricedStage
from costs.step.replicas import PricedReplicas, expert_replicas
from costs.work import work_of
from tests.costs.priced import (
    plan_of,
    priced,
    setting_of,
    shard_of,
    stage_memories,
    with_efficiency,
    with_links,
    with_model,
    with_trainer,
)

S, H, F, TOP_K, EXPERTS, WIDTH = 4096, 4096, 14336, 2, 8, 2  # of Mixtral 8x7B in bf16


@pytest.fixture
def mixtral() -> Setting:
    return setting_of("mixtral-8x7b", "dgx-h100", trainer="megatron-core")


def with_experts(setting: Setting, **values: float) -> Setting:
    return with_model(setting, experts=experts_of(setting).model_copy(update=values))


def test_every_rank_sends_top_k_copies_and_multiplies_an_even_share(mixtral: Setting) -> None:
    sent = route(mixtral, shard_of(1, expert_parallel_size=4))
    assert (sent.copies[0], sent.rows[0], sent.num_experts[0]) == (S * TOP_K, S * TOP_K, EXPERTS // 4)
    assert sent.rows_each[0] * 2 == S * TOP_K


def test_tensor_ranks_that_share_experts_gather_each_others_copies(mixtral: Setting) -> None:
    shard = shard_of(4, sequence_parallel=True, expert_parallel_size=2)
    assert route(mixtral, shard).rows[0] == S * TOP_K
    alone = replace(mixtral, expert_tensor_parallel_size=1)
    assert route(alone, shard).rows[0] == S * TOP_K // 4


def test_capacity_limits_the_copies_and_imbalance_adds_rows(mixtral: Setting) -> None:
    shard = shard_of(1, expert_parallel_size=8)
    assert route(with_experts(mixtral, capacity_factor=0.5), shard).copies[0] == S
    uneven = route(with_experts(mixtral, imbalance=1.25), shard)
    assert (uneven.copies[0], uneven.rows[0]) == (S * TOP_K, S * TOP_K * 5 // 4)


def test_a_layer_keeps_the_rows_that_its_experts_got_and_both_sides_of_the_activation(mixtral: Setting) -> None:
    dense = with_model(mixtral, experts=None, ffn_hidden_size=0)
    more = expert_layer_costs(mixtral, shard_of()).kept_bytes[0] - layer_costs(dense, shard_of()).kept_bytes[0]
    assert more == S * TOP_K * (H + 3 * F) * WIDTH


def test_full_recomputation_keeps_nothing_of_the_experts_and_repeats_dispatch_and_combine(mixtral: Setting) -> None:
    kept, full = (expert_layer_costs(mixtral, shard_of(expert_parallel_size=8, recompute=r)) for r in ("none", "full"))
    assert full.kept_bytes[0] == S * H * WIDTH
    assert full.tensor_backward_seconds[0] == pytest.approx(2 * kept.tensor_backward_seconds[0])


@pytest.mark.parametrize(("recipe", "width"), [(None, 2.0), ("fp8-delayed", 1.0)])
def test_pointwise_recomputation_drops_the_activations_output_as_it_is_kept(
    mixtral: Setting, recipe: MatmulRecipe | None, width: float
) -> None:
    setting = replace(mixtral, matmul_recipe=recipe)
    dense = with_model(setting, experts=None, ffn_hidden_size=0)

    def kept_of_experts(recompute: str) -> int:
        shard = shard_of(recompute=recompute)
        return int(expert_layer_costs(setting, shard).kept_bytes[0] - layer_costs(dense, shard).kept_bytes[0])

    assert kept_of_experts("none") - kept_of_experts("pointwise") == S * TOP_K * F * width


def test_an_exchange_is_as_slow_as_what_leaves_the_node(mixtral: Setting) -> None:
    """Of sixteen ranks on two nodes, half of everything goes through each device's own port."""
    quick = with_efficiency(with_links(mixtral, latency_seconds=0.0), taper=0.0, start=0.0)
    num_bytes, sixteen, one = np.array([1e9]), np.array([16]), np.array([1])
    inside, outside = (link.bandwidth_bytes_per_second for link in quick.cluster.links)
    link = quick.cluster.efficiency.link
    assert exchange_seconds(quick, num_bytes, sixteen, one)[0] == pytest.approx(1e9 / 2 / (outside * link))
    eight = exchange_seconds(quick, num_bytes, np.array([8]), one)[0]
    assert eight == pytest.approx(1e9 * 7 / 8 / (inside * link))
    assert exchange_seconds(quick, num_bytes, one, one)[0] == 0.0
    tapering = with_efficiency(quick, taper=0.1)
    assert exchange_seconds(tapering, num_bytes, sixteen, one)[0] == pytest.approx(1.1 * 1e9 / 2 / (outside * link))
    assert exchange_seconds(tapering, num_bytes, np.array([8]), one)[0] == eight


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_an_exchange_without_a_switch_has_one_wire_to_each_peer(num_ranks: int) -> None:
    """Of seven wires, one to each other GPU of the node, each carries the part for that one."""
    alone = setting_of("mixtral-8x7b", "mi300x", trainer="megatron-core")
    quick = with_efficiency(with_links(alone, latency_seconds=0.0), start=0.0)
    wire = quick.cluster.links[0].bandwidth_bytes_per_second / 7 * quick.cluster.efficiency.link
    seconds = exchange_seconds(quick, np.array([1e9]), np.array([num_ranks]), np.array([1]))[0]
    assert seconds == pytest.approx(1e9 / num_ranks / wire)


def test_an_exchange_starts_as_other_collectives_do_but_for_kernels_that_send_once(mixtral: Setting) -> None:
    arguments = (np.zeros(1), np.array([8]), np.array([1]))
    late, at_once = (with_efficiency(mixtral, start=start) for start in (1e-3, 0.0))
    waited = exchange_seconds(late, *arguments)[0] - exchange_seconds(at_once, *arguments)[0]
    assert waited == pytest.approx(1e-3)
    assert exchange_seconds(late, *arguments, top_k=2)[0] == exchange_seconds(at_once, *arguments, top_k=2)[0]


def test_many_small_experts_take_longer_than_few_large_ones_of_as_many_parameters(mixtral: Setting) -> None:
    """In products of few rows, tiles are half empty: 64 experts of 64 rows each against 8."""
    products = with_efficiency(with_model(mixtral, seq_length=512), memory=1e9, kernel_seconds=0.0)
    many = with_experts(products, num_experts=512)
    few, small = (expert_layer_costs(each, shard_of()).forward_seconds[0] for each in (products, many))
    assert small > few


def test_a_token_sent_once_reaches_fewer_ranks_than_it_has_experts(mixtral: Setting) -> None:
    """Two even choices among four ranks reach 1.75 of them; with one rank for each expert there is nothing to save."""
    once = replace(mixtral, expert_dispatcher="hybridep")
    quick = [with_efficiency(with_links(each, latency_seconds=0.0), start=0.0) for each in (mixtral, once)]
    every, fewer = (
        float(expert_layer_costs(each, shard_of(expert_parallel_size=4)).tensor_forward_seconds[0]) for each in quick
    )
    assert fewer / every == pytest.approx(4 * (1 - 0.75**TOP_K) / TOP_K)


def test_a_token_sent_once_to_a_node_is_passed_on_inside_it(mixtral: Setting) -> None:
    """Of the nodes that even choices reach half are others, and of the ranks 7 of 8 have to be passed on to."""
    quick = with_efficiency(with_links(mixtral, latency_seconds=0.0), taper=0.0, start=0.0)
    num_bytes, sixteen, one = np.array([8e9]), np.array([16]), np.array([1])
    inside, outside = (link.bandwidth_bytes_per_second * quick.cluster.efficiency.link for link in quick.cluster.links)
    every = exchange_seconds(quick, num_bytes, sixteen, one)[0]
    assert every == pytest.approx(8e9 / 2 / outside)
    nodes, ranks = (count * (1 - (1 - 1 / count) ** 8) for count in (2, 16))
    leaving, forwarded = 1e9 * nodes / 2 / outside, 1e9 * ranks * 7 / 8 / inside
    assert exchange_seconds(quick, num_bytes, sixteen, one, top_k=8)[0] == pytest.approx(max(leaving, forwarded))


def test_dispatch_without_a_capacity_waits_for_the_counts_of_tokens(mixtral: Setting) -> None:
    """The launches up to the products come on top, where else the host has launched them ahead."""
    waiting, padded = mixtral, with_experts(mixtral, capacity_factor=1.0)
    shard = shard_of(expert_parallel_size=4)
    kernels = ROUTING_KERNELS + MOVES_KERNELS
    launched = kernels * mixtral.implementation.launch_seconds * mixtral.cluster.efficiency.launch
    ahead, behind = (
        [float(expert_layer_costs(each, shard).forward_seconds[0]) for each in (padded, waiting)],
        [float(expert_layer_costs(each, shard).input_gradient_seconds[0]) for each in (padded, waiting)],
    )
    assert ahead[1] - ahead[0] == pytest.approx(launched)
    assert behind[1] == behind[0]
    for other in (replace(waiting, expert_dispatcher="hybridep"), with_trainer(waiting, launch_seconds=0.0)):
        assert expert_layer_costs(other, shard).forward_seconds[0] == pytest.approx(ahead[0])


def test_exchanges_show_in_part_beside_another_micro_batch(mixtral: Setting) -> None:
    beside = with_trainer(mixtral, experts_overlap=1.0)
    for name in ("tensor_forward_seconds", "tensor_backward_seconds"):
        alone, shown = (
            getattr(expert_layer_costs(each, shard_of(expert_parallel_size=8)), name) for each in (mixtral, beside)
        )
        assert shown[0] == pytest.approx(mixtral.scale.shown * alone[0])


def test_experts_one_after_the_other_leave_more_waves_half_empty(mixtral: Setting) -> None:
    small = with_model(mixtral, seq_length=512)
    apart = with_trainer(small, groups_experts=False)
    together, each = (expert_layer_costs(one, shard_of()).forward_seconds[0] for one in (small, apart))
    assert each > together


def test_small_micro_batches_wait_for_the_host_that_launches_every_expert(mixtral: Setting) -> None:
    small = with_experts(with_model(mixtral, seq_length=64), num_experts=256, ffn_hidden_size=128)
    free = with_trainer(small, launch_seconds=0.0)
    launched, alone = (float(expert_layer_costs(each, shard_of()).forward_seconds[0]) for each in (small, free))
    assert launched - alone > 200 * mixtral.implementation.launch_seconds
    # Graphs of the layer take over its own kernels and those of routing, but launch no expert's.
    graphed = float(expert_layer_costs(with_trainer(small, graphs_layers=True), shard_of()).forward_seconds[0])
    assert 200 * mixtral.implementation.launch_seconds < graphed - alone < launched - alone


@pytest.mark.parametrize(
    ("dispatcher", "forward", "backward"),
    [("alltoall", 8 * F + 6 * H, 15 * F + 8 * H), ("hybridep", 8 * F + 14 * H, 15 * F + 20 * H)],
)
def test_biases_and_the_cap_of_experts_are_passes_over_memory_where_nothing_fuses_them(
    mixtral: Setting, dispatcher: ExpertDispatcher, forward: int, backward: int
) -> None:
    fused = with_trainer(replace(mixtral, expert_dispatcher=dispatcher), launch_seconds=0.0, memory_traffic=1.0)
    apart, shard = with_trainer(fused, unfused_expert_biases=True), shard_of(expert_parallel_size=4)
    before, after = expert_layer_costs(fused, shard), expert_layer_costs(apart, shard)
    device, efficiency = mixtral.cluster.device, mixtral.cluster.efficiency
    for name, elements, kernels in (
        ("forward_seconds", forward, 4 + 2 * EXPERTS // 4),
        ("input_gradient_seconds", backward, 8 + 4 * EXPERTS // 4),
    ):
        moved = S * TOP_K * elements * WIDTH / (device.memory_bandwidth_bytes_per_second * efficiency.memory)
        more = getattr(after, name)[0] - getattr(before, name)[0]
        assert more == pytest.approx(moved + kernels * efficiency.kernel_seconds)
    assert after.kept_bytes[0] - before.kept_bytes[0] == S * TOP_K * 2 * F * WIDTH


def test_experts_are_reduced_over_the_ranks_that_hold_the_same_ones(mixtral: Setting) -> None:
    plans = plan_of(mixtral, tensor_parallel_size=2, data_parallel_size=16, expert_parallel_size=8)
    assert expert_replicas(mixtral, plans)[0] == 2
    assert expert_replicas(replace(mixtral, expert_tensor_parallel_size=1), plans)[0] == 4


def test_all_ranks_together_own_every_parameter_once(mixtral: Setting) -> None:
    plans = plan_of(mixtral, data_parallel_size=32, expert_parallel_size=8, zero_stage=1)
    (group,) = spread_stages(plans, mixtral.model.num_layers)
    owned = PricedStage(PricedReplicas(mixtral, plans), work_of(mixtral, plans), group).owned_parameters[0]
    assert owned * 32 == pytest.approx(num_parameters(mixtral.model), rel=1e-6)


def test_first_layers_without_experts_are_priced_as_what_they_are() -> None:
    deepseek = setting_of("deepseek-v3", "dgx-h100", trainer="megatron-core")
    plans = plan_of(deepseek, pipeline_parallel_size=8, data_parallel_size=64, expert_parallel_size=64)
    held = stage_memories(
        deepseek, pipeline_parallel_size=8, data_parallel_size=64, expert_parallel_size=64, num_micro_batches=64
    )
    work = work_of(deepseek, plans)
    first = 3 * work.dense_layer_parameters[0] + 5 * work.layer_parameters[0] + work.embedding_parameters[0]
    assert held.parameters[0] == first
    assert held.parameters[1] == 8 * work.layer_parameters[0]


@pytest.mark.parametrize("name", ["mixtral-8x7b", "grok-1", "deepseek-v2", "qwen3-30b-a3b"])
def test_more_expert_ranks_hold_less_and_exchange_more(name: str) -> None:
    setting = setting_of(name, "dgx-h100", trainer="megatron-core")
    sizes = {"data_parallel_size": 16, "zero_stage": 1, "num_micro_batches": 4}
    one, eight = (priced(setting, expert_parallel_size=e, **sizes) for e in (1, 8))
    assert eight.peak_memory_bytes[0] < one.peak_memory_bytes[0]
    assert eight.step.tensor_seconds[0] > one.step.tensor_seconds[0]
