"""Latent attention computes what `transformers` does for DeepSeek-V3, and trains like the oracle in every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conf.types.model_spec import ModelSpec
from tests.train_core.conftest import ExperimentOf, Worlds
from tests.train_core.training.layouts import LATENT_LLAMA, SHORT_VECTORS, Layout
from tests.train_core.training.oracle import train
from tests.train_core.training.test_random_layouts import assembled, require_like, train_and_tell
from train_core.model.attention import LatentAttention, causal_attention
from train_core.model.initialize import rotary_table_of

HEADS, HEAD, ROTARY, VALUE, RANK = 8, 10, 4, 6, 10


@pytest.fixture(params=[12, None], ids=["short queries", "queries of the hidden state"])
def spec(request: pytest.FixtureRequest, experiment_of: ExperimentOf) -> ModelSpec:
    attention = {"model.latent_attention": SHORT_VECTORS | {"query_rank": request.param}}
    return experiment_of(LATENT_LLAMA | attention | {"model.norm_epsilon": 1e-6}).model


def theirs(spec: ModelSpec) -> tuple[Any, Any]:
    """A random attention of `transformers` of the same shape, and what makes its positions."""
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as modeling

    assert spec.latent_attention is not None
    config = DeepseekV3Config(
        hidden_size=spec.hidden_size,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=spec.latent_attention.query_rank,
        kv_lora_rank=RANK,
        qk_rope_head_dim=ROTARY,
        qk_nope_head_dim=HEAD - ROTARY,
        v_head_dim=VALUE,
        max_position_embeddings=spec.seq_length,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rotary_base},
        rope_interleave=True,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    attention = modeling.DeepseekV3Attention(config, 0)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return attention, modeling.DeepseekV3RotaryEmbedding(config)


def in_halves(weight: Tensor, head_size: int) -> Tensor:
    """Rows of heads whose pairs of neighbours turn there, in the order in which element i turns with i + d/2."""
    plain, ends = weight.detach().unflatten(0, (-1, head_size)).split([head_size - ROTARY, ROTARY], 1)
    return torch.cat((plain, ends[:, ::2], ends[:, 1::2]), 1).flatten(0, 1)


def ours(spec: ModelSpec, other: Any) -> LatentAttention:
    """The same attention here."""
    attention, down = LatentAttention(spec), in_halves(other.kv_a_proj_with_mqa.weight, RANK + ROTARY)
    weights = {"pair_up": other.kv_b_proj.weight, "projection": other.o_proj.weight}
    weights["short_pair_norm"] = other.kv_a_layernorm.weight
    if other.q_proj is None:
        down = torch.cat((other.q_a_proj.weight.detach(), down))
        weights["short_query_norm"] = other.q_a_layernorm.weight
    weights |= {"down": down, "query_up": in_halves((other.q_proj or other.q_b_proj).weight, HEAD)}
    attention.load_state_dict({f"{name}.weight": weight.detach() for name, weight in weights.items()})
    return attention


@pytest.mark.slow
def test_outputs_and_gradients_are_those_of_transformers(spec: ModelSpec) -> None:
    other, positions = theirs(spec)
    attention, rotary = ours(spec, other), rotary_table_of(spec)
    x, grad_out = torch.randn(2, 3, spec.seq_length, spec.hidden_size)
    mask = torch.full((spec.seq_length, spec.seq_length), -torch.inf).triu(1)[None, None]
    at_both = [x.clone().requires_grad_() for _ in range(2)]
    table = positions(x, torch.arange(spec.seq_length)[None].expand(len(x), -1))
    expected, _ = other(at_both[0], position_embeddings=table, attention_mask=mask)
    out = attention(at_both[1].transpose(0, 1), rotary).transpose(0, 1)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    expected.backward(grad_out)
    out.backward(grad_out)
    torch.testing.assert_close(at_both[1].grad, at_both[0].grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(attention.get_parameter("pair_up.weight").grad, other.kv_b_proj.weight.grad)


def test_values_that_are_narrower_than_keys_are_attended_to_as_by_the_formula() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 2, 3, 8, 10, requires_grad=True)
    value = torch.randn(2, 3, 8, 6, requires_grad=True)
    scores = query @ key.transpose(-1, -2) / 10**0.5
    weights = scores.masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    out, expected = causal_attention(query, key, value), weights @ value
    torch.testing.assert_close(out, expected)
    grad_out = torch.randn_like(out)
    for found, wanted in zip(*(torch.autograd.grad(each, value, grad_out) for each in (out, expected)), strict=True):
        torch.testing.assert_close(found, wanted)


LATENT = [
    Layout(2, 1, 1, family="latent"),
    Layout(2, 1, 1, sequence_parallel=True, recompute=("selective", 1), family="latent"),
    Layout(1, 1, 2, zero_stage=3, family="latent"),
    Layout(2, 2, 1, "zero-bubble", sequence_parallel=True, family="latent"),
    Layout(4, 1, 1, recompute=("full", 1), family="latent"),
    Layout(2, 1, 2, sequence_parallel=True, expert=4, zero_stage=1, family="latent mixture"),
]
CONTEXT = [
    Layout(1, 1, 1, context=2, family="latent"),
    Layout(1, 1, 1, context=4, context_exchange="gather", recompute=("selective", 1), family="latent"),
    Layout(2, 1, 1, context=2, context_exchange="gather", zero_stage=3, family="latent"),
    Layout(2, 2, 1, "zero-bubble", context=2, sequence_parallel=True, family="latent"),
    Layout(1, 2, 1, "interleaved", context=2, context_exchange="gather", recompute=("full", 1), family="latent"),
    Layout(2, 1, 1, context=2, sequence_parallel=True, expert=4, zero_stage=1, family="latent mixture"),
]


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    LATENT + CONTEXT,
    ids=lambda one: f"{'-'.join(map(str, one[:6]))}-{one.context}-{one.context_exchange}-{one.family}",
)
def test_latent_attention_trains_like_the_oracle(
    layout: Layout, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(layout.values() | {"data.source": "synthetic"})
    measured = assembled(worlds(layout.num_ranks).run(train_and_tell, experiment, tmp_path))
    require_like(measured, train(experiment, torch.float64))
