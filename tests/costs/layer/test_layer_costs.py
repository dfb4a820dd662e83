"""One layer: activations row by row of the literature's table, and seconds against counts by hand."""

from __future__ import annotations

import pytest

from conf.types.recompute import RECOMPUTES
from costs.kernels import matmul_seconds
from costs.layer.layer_costs import layer_costs
from costs.layer.shard import Shard
from costs.setting import Setting
from costs.work import end_bytes, head_costs
from tests.costs.priced import (
    setting_of,
    shard_of,
    unscaled,
    with_efficiency,
    with_links,
    with_model,
    with_trainer,
)

TENSOR = 8
S, B, H, A = 2048, 4, 12288, 96  # of the 175B, with four sequences


@pytest.fixture(params=["bf16", "fp16"])
def megatron(request: pytest.FixtureRequest) -> Setting:
    return setting_of("gpt-175b", "selene", request.param)


@pytest.fixture
def compute_alone() -> Setting:
    """Megatron-LM where memory is so fast and kernels start so soon that only products take time."""
    return with_efficiency(setting_of("gpt-175b", "selene"), kernel_seconds=0.0, memory=1e9)


def kept(setting: Setting, shard: Shard) -> int:
    return int(layer_costs(setting, shard).kept_bytes[0])


@pytest.mark.parametrize(
    ("shard", "expected"),
    [
        (shard_of(1, B), S * B * H * 34 + 5 * A * S * S * B),
        (shard_of(TENSOR, B), S * B * H * 10 + (S * B * H * 24 + 5 * A * S * S * B) // TENSOR),
        (shard_of(TENSOR, B, sequence_parallel=True), (S * B * H * 34 + 5 * A * S * S * B) // TENSOR),
        (shard_of(TENSOR, B, recompute="selective"), S * B * H * 10 + S * B * H * 24 // TENSOR),
        (shard_of(TENSOR, B, sequence_parallel=True, recompute="selective"), S * B * H * 34 // TENSOR),
        (shard_of(TENSOR, B, recompute="full"), S * B * H * 2),
    ],
    ids=["none", "tensor", "tensor + sequence", "tensor + selective", "tensor + sequence + selective", "full"],
)
def test_megatrons_activations_are_the_table_of_korthikanti(megatron: Setting, shard: Shard, expected: int) -> None:
    """Exactly: arXiv 2205.05198, table 2."""
    assert kept(megatron, shard) == expected


def test_full_recomputation_under_sequence_parallelism_keeps_a_share_of_the_layers_input(megatron: Setting) -> None:
    assert kept(megatron, shard_of(TENSOR, B, sequence_parallel=True, recompute="full")) == S * B * H * 2 // TENSOR


def test_without_dropout_no_masks_are_kept(megatron: Setting) -> None:
    """Two bytes a hidden unit after attention and feed-forward layer, and of each score its mask and dropped result."""
    dropped = kept(megatron, shard_of(1, B)) - kept(with_trainer(megatron, dropout=False), shard_of(1, B))
    assert dropped == S * B * H * 2 + 3 * A * S * S * B


def test_flash_attention_keeps_one_number_a_token_and_head_instead_of_scores(megatron: Setting) -> None:
    flash = with_trainer(megatron, flash_attention=True)
    scores = 5 * A * S * S * B // TENSOR
    assert kept(megatron, shard_of(TENSOR, B)) - kept(flash, shard_of(TENSOR, B)) == scores - 4 * S * B * A // TENSOR


def test_a_llama_with_grouped_queries_and_a_gate_keeps_what_a_count_by_hand_says() -> None:
    """Llama 3.1 8B in this trainer's way: 4096 wide, 32 query heads, 8 groups of 128, 14,336 feed-forward units."""
    tokens = 8192 * 2
    norms = 4 * 4096 + 4  # both norms' inputs and outputs, and their statistics
    heads = 4096 + 1024 + 1024 + 4096  # queries, keys, values, and the attention's output
    feed_forward = 3 * 14336  # gate, up, and their product
    expected = tokens * ((norms + heads + feed_forward) * 2 + 32 * 4)  # the last is flash attention's log-sum-exp
    assert kept(setting_of("llama-3.1-8b", "dgx-h100", trainer="trisweep"), shard_of(1, 2)) == expected


def test_without_a_gate_a_third_less_of_the_feed_forward_layer_is_kept() -> None:
    gated = setting_of("llama-3.1-8b", "dgx-h100")
    without = kept(gated, shard_of()) - kept(with_model(gated, gated_mlp=False), shard_of())
    assert without == 8192 * 14336 * 2


def test_selective_recomputation_holds_one_layers_scores_while_it_runs_backward(megatron: Setting) -> None:
    plain, selective = (layer_costs(megatron, shard_of(TENSOR, B, recompute=name)) for name in ("none", "selective"))
    assert selective.working_bytes[0] - plain.working_bytes[0] == 5 * A * S * S * B // TENSOR


@pytest.mark.parametrize("trainer", ["trisweep", "megatron-lm", "torchtitan"])
@pytest.mark.parametrize("recompute", [name for name in RECOMPUTES if name != "none"])
def test_every_mode_keeps_less_than_none_and_takes_longer(recompute: str, trainer: str) -> None:
    setting = setting_of("llama-3.1-8b", "dgx-h100", trainer=trainer)
    plain, again = (layer_costs(setting, shard_of(recompute=name)) for name in ("none", recompute))
    assert again.kept_bytes[0] < plain.kept_bytes[0]
    assert again.input_gradient_seconds[0] > plain.input_gradient_seconds[0]


def test_forward_multiplies_what_each_rank_holds_of_the_four_matrices(compute_alone: Setting) -> None:
    setting = with_trainer(compute_alone, flash_attention=True)
    shapes = ((3 * H // TENSOR, H), (H, H // TENSOR), (4 * H // TENSOR, H), (H, 4 * H // TENSOR))
    products = sum(matmul_seconds(setting, S * B, columns, depth) for columns, depth in shapes)
    efficiency = setting.cluster.efficiency.attention * setting.peak_flops_per_second
    attention = 2 * S * S * B * H / TENSOR / efficiency  # half of the square, 4 S^2 B H: the mask is causal
    assert layer_costs(setting, shard_of(TENSOR, B)).forward_seconds[0] == pytest.approx(products + attention)


def test_unfused_attention_multiplies_two_times_forward_and_four_times_backward(compute_alone: Setting) -> None:
    """Scores and weighted values of every head; backward to values, weights, queries and keys."""
    heads, size = B * A // TENSOR, H // A
    wide, deep = (matmul_seconds(compute_alone, S, *shape, heads) for shape in ((S, size), (size, S)))
    flash = with_efficiency(with_trainer(compute_alone, flash_attention=True), attention=1e9)  # which takes no time
    for name, expected in (("forward_seconds", wide + deep), ("input_gradient_seconds", wide + 3 * deep)):
        unfused, without = (getattr(layer_costs(one, shard_of(TENSOR, B)), name)[0] for one in (compute_alone, flash))
        assert unfused - without == pytest.approx(expected)


@pytest.mark.parametrize(("name", "held", "gelu"), [("forward_seconds", 10, 2), ("input_gradient_seconds", 14, 3)])
def test_between_products_norms_residuals_activation_and_heads_go_through_memory(
    megatron: Setting, name: str, held: int, gelu: int
) -> None:
    """Elements of two bytes a hidden unit, a feed-forward unit, and of queries and keys; two masks of one byte."""
    tokens = S * B
    whole = tokens * (held * H * 2 + 2 * H)
    split = tokens * (gelu * 4 * H + 2 * 2 * H) * 2 / TENSOR
    once, twice = (
        getattr(layer_costs(with_trainer(megatron, memory_traffic=traffic), shard_of(TENSOR, B)), name)[0]
        for traffic in (1.0, 2.0)
    )
    bandwidth = megatron.cluster.device.memory_bandwidth_bytes_per_second * megatron.cluster.efficiency.memory
    assert twice - once == pytest.approx((whole + split) / bandwidth)


def test_a_gate_moves_a_third_more_of_the_feed_forward_layer_through_memory() -> None:
    gated = with_trainer(setting_of("llama-3.1-8b", "dgx-h100"), memory_traffic=1e6)  # so that nothing else counts
    forward, backward = (
        getattr(layer_costs(gated, shard_of()), name)[0]
        - getattr(layer_costs(with_model(gated, gated_mlp=False), shard_of()), name)[0]
        for name in ("forward_seconds", "input_gradient_seconds")
    )
    bandwidth = gated.cluster.device.memory_bandwidth_bytes_per_second * gated.cluster.efficiency.memory
    assert forward == pytest.approx(8192 * 14336 * 2 * 1e6 / bandwidth, rel=1e-3)
    assert backward == pytest.approx(2 * forward, rel=1e-3)


def test_the_head_multiplies_by_the_vocabulary_once_forward_and_twice_backward(compute_alone: Setting) -> None:
    vocabulary = compute_alone.model.vocab_size // TENSOR
    shapes = ((S * B, vocabulary, H), (S * B, H, vocabulary), (vocabulary, H, S * B))
    expected = [float(matmul_seconds(compute_alone, *shape)) for shape in shapes]
    assert [float(one[0]) for one in head_costs(compute_alone, shard_of(TENSOR, B))[:3]] == pytest.approx(expected)


def test_flash_attention_multiplies_five_times_backward_for_two_forward(compute_alone: Setting) -> None:
    """Of which the scores are the forward's, computed again. Source: arXiv 2205.14135, appendix B."""
    setting = with_trainer(compute_alone, flash_attention=True)
    without = with_model(setting, seq_length=S // 2)  # the same tokens, a quarter of the scores for each sequence
    forward, backward = (
        getattr(layer_costs(setting, shard_of(1, B)), name)[0]
        - getattr(layer_costs(without, shard_of(1, 2 * B)), name)[0]
        for name in ("forward_seconds", "input_gradient_seconds")
    )
    assert backward == pytest.approx(2.5 * forward)


def test_full_recomputation_repeats_the_forward_and_its_collectives(megatron: Setting) -> None:
    plain, full = (layer_costs(megatron, shard_of(TENSOR, B, recompute=name)) for name in ("none", "full"))
    repeated = full.input_gradient_seconds - plain.input_gradient_seconds
    assert repeated[0] == pytest.approx(plain.forward_seconds[0])
    sent = full.tensor_backward_seconds - plain.tensor_backward_seconds
    assert sent[0] == pytest.approx(plain.tensor_forward_seconds[0])


def test_selective_recomputation_repeats_the_scores_alone(megatron: Setting) -> None:
    plain, selective = (layer_costs(megatron, shard_of(1, B, recompute=name)) for name in ("none", "selective"))
    repeated = (selective.input_gradient_seconds - plain.input_gradient_seconds)[0]
    assert 0 < repeated < 0.5 * plain.forward_seconds[0]
    assert selective.tensor_backward_seconds[0] == plain.tensor_backward_seconds[0]


def test_one_tensor_rank_sends_nothing(megatron: Setting) -> None:
    costs = layer_costs(megatron, shard_of(1, B))
    assert costs.tensor_forward_seconds[0] == costs.tensor_backward_seconds[0] == 0


@pytest.mark.parametrize(
    ("sequence", "recompute", "num_gathers"),
    [(False, "none", 4), (True, "none", 6), (False, "full", 8), (True, "full", 10)],
)
def test_backward_sends_what_the_trainer_sends(sequence: bool, recompute: str, num_gathers: int) -> None:
    """In gathers of one hidden state, of which an all-reduce counts for two; forward is two all-reduces."""
    at_once = with_links(setting_of("gpt-175b", "selene", trainer="megatron-deepspeed"), latency_seconds=0.0)
    setting = with_efficiency(at_once, start=0.0)
    costs = layer_costs(setting, shard_of(TENSOR, B, sequence_parallel=sequence, recompute=recompute))
    link = setting.cluster.links[0].bandwidth_bytes_per_second * setting.cluster.efficiency.link
    gather = S * B * H * 2 * (TENSOR - 1) / TENSOR / link
    assert costs.tensor_forward_seconds[0] == pytest.approx(4 * gather)
    assert costs.tensor_backward_seconds[0] == pytest.approx(num_gathers * gather)


@pytest.mark.parametrize(("sequence", "left"), [(False, 0), (True, 2)])
def test_weight_gradients_hide_the_reductions_of_fast_links(sequence: bool, left: int) -> None:
    """Of sequence parallelism the gathers of the outputs' gradients are left, which nothing runs beside."""
    setting = unscaled(with_links(setting_of("gpt-175b", "selene"), latency_seconds=0.0))
    costs = layer_costs(setting, shard_of(TENSOR, B, sequence_parallel=sequence))
    gather = costs.tensor_forward_seconds[0] / 4
    assert costs.tensor_backward_seconds[0] == pytest.approx(left * gather)


def test_a_slow_link_hides_no_more_than_the_weight_gradients_of_the_same_products() -> None:
    """A thousandth of the bandwidth: queries, keys and values, and the way up, each beside their own reduction."""
    setting = unscaled(with_links(setting_of("gpt-175b", "selene"), bandwidth_bytes_per_second=1e-3))
    costs = layer_costs(setting, shard_of(TENSOR, B))
    added = 2 * setting.gradient_bytes
    hidden = sum(matmul_seconds(setting, units * H // TENSOR, H, S * B, added_bytes=added) for units in (3, 4))
    assert costs.tensor_backward_seconds[0] == pytest.approx(costs.tensor_forward_seconds[0] - hidden)


def test_on_a_cpu_collectives_take_the_cores_that_they_would_run_beside() -> None:
    costs = layer_costs(setting_of("gpt-175b-proxy", "local", "fp32", "trisweep"), shard_of(2))
    assert costs.tensor_backward_seconds[0] == costs.tensor_forward_seconds[0] > 0


@pytest.mark.parametrize(("dtype", "num_bytes"), [("bf16", 2 + 4 + 4), ("fp32", 4 + 4)])
def test_logits_are_held_with_their_gradient_and_where_they_are_not_fp32_in_a_copy(dtype: str, num_bytes: int) -> None:
    setting, shard = setting_of("gpt-175b", "selene", dtype), shard_of(TENSOR, B)
    loss, _, _ = end_bytes(setting, shard, layer_costs(setting, shard))
    assert loss.logits == S * B * setting.model.vocab_size // TENSOR * num_bytes


@pytest.mark.parametrize(("recompute", "has_logits"), [("none", True), ("full", False)])
def test_of_this_trainer_the_last_stage_holds_logits_or_what_a_layer_recomputes(
    recompute: str, has_logits: bool
) -> None:
    """Both are never there at once: the loss is over when the last layer runs backward."""
    setting, shard = setting_of("gpt-175b", "selene", trainer="trisweep"), shard_of(TENSOR, recompute=recompute)
    loss, _, last = end_bytes(setting, shard, layer_costs(setting, shard))
    assert (loss.total[0] >= last.total[0]) == has_logits
