"""Parameters and FLOPs of models with experts and with latent attention, against published totals and by hand."""

from __future__ import annotations

import pytest

from conf.types.model_spec import ExpertsSpec, ModelSpec
from costs import hardware_flops, model_flops, num_parameters
from costs.counts.parameters import experts_parameters, layer_parameters
from tests.composed import load


def model(name: str) -> ModelSpec:
    return load([f"model={name}"]).model


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "published", "rel"),
    [
        ("mixtral-8x7b", 46.7e9, 1e-3),  # arXiv 2401.04088
        ("mixtral-8x22b", 140.6e9, 1e-3),
        ("grok-1", 314e9, 6e-3),  # rounded down from what its tensors hold
        ("deepseek-v2", 235.7e9, 1e-3),  # arXiv 2405.04434: 236B
        ("deepseek-v3", 671.0e9, 1e-3),  # arXiv 2412.19437: 671B
        ("qwen3-30b-a3b", 30.5e9, 2e-3),  # arXiv 2505.09388
        ("qwen3-235b-a22b", 235.1e9, 1e-3),
    ],
)
def test_all_parameters_are_those_that_were_published(name: str, published: float, rel: float) -> None:
    assert num_parameters(model(name)) == pytest.approx(published, rel=rel)


@pytest.mark.parametrize(
    ("name", "active"),
    [("mixtral-8x7b", 12.9e9), ("deepseek-v2", 21e9), ("deepseek-v3", 37e9), ("qwen3-30b-a3b", 3.3e9)],
)
def test_a_tokens_flops_are_six_for_every_parameter_that_it_passes_through(name: str, active: float) -> None:
    spec = model(name).model_copy(update={"seq_length": 1})  # one token, so that attention has next to no products
    embedding = spec.vocab_size * spec.hidden_size  # looked up, not multiplied
    assert model_flops(spec, 1) / 6 + embedding == pytest.approx(active, rel=0.02)


def test_recomputation_of_all_layers_repeats_each_kind_once() -> None:
    spec = model("deepseek-v3")
    head = 6 * spec.seq_length * spec.hidden_size * spec.vocab_size
    layers = (model_flops(spec, 1) - head) // 3
    assert hardware_flops(spec, 1, "full") == model_flops(spec, 1) + layers


def test_one_expert_that_every_token_takes_is_a_feed_forward_layer_with_a_router() -> None:
    dense = model("llama-2-7b")
    only = ExpertsSpec(num_experts=1, top_k=1, ffn_hidden_size=dense.ffn_hidden_size)
    sparse = dense.model_copy(update={"experts": only})
    router = dense.num_layers * dense.hidden_size
    assert num_parameters(sparse) == num_parameters(dense) + router
    assert model_flops(sparse, 2) == model_flops(dense, 2) + 6 * 2 * dense.seq_length * router


def test_biases_of_experts_are_counted_where_the_family_has_biases() -> None:
    dense = model("gpt-1.4b")
    only = ExpertsSpec(num_experts=1, top_k=1, ffn_hidden_size=dense.ffn_hidden_size)
    sparse = dense.model_copy(update={"experts": only})
    assert num_parameters(sparse) == num_parameters(dense) + dense.num_layers * dense.hidden_size


def test_ranks_hold_equal_parts_of_what_they_share_and_the_short_vectors_matrices_whole() -> None:
    spec = model("deepseek-v3")
    assert experts_parameters(spec, 8, 2) * 16 == experts_parameters(spec, 1, 1)
    latent = spec.latent_attention
    assert latent is not None
    assert latent.query_rank is not None
    ranks = latent.query_rank + latent.key_value_rank
    norms = 2 * spec.hidden_size + ranks
    router = 256 * spec.hidden_size
    whole = (ranks + latent.rotary_head_size) * spec.hidden_size + norms + router
    assert 2 * (layer_parameters(spec, 2) - whole) == layer_parameters(spec, 1) - whole
