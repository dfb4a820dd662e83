"""The model of a row: its family, its experts and its attention."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from conf.types.model_spec import AttentionWindowSpec, ExpertsSpec, LatentAttentionSpec, ModelSpec
from sweeps.table.layout import model_of
from tests.messages import refused

SIZES = {"layers": "4", "hidden": "5120", "heads": "128", "seq": "4096", "ffn_hidden": "12288"}
DEEPSEEK_ATTENTION = LatentAttentionSpec(query_rank=1536, key_value_rank=512, rotary_head_size=64, value_head_size=128)
EXPERTS = {"num_experts": "160.0", "top_k": "6.0", "moe_ffn": "1536.0"}


def model(**cells: str) -> ModelSpec:
    return model_of({**SIZES, **cells}, 1)


def test_experts_are_read_with_what_is_usual_for_the_rest() -> None:
    assert model(**EXPERTS).experts == ExpertsSpec(num_experts=160, top_k=6, ffn_hidden_size=1536)
    shared = model(**EXPERTS, shared_expert_ffn="3072.0", dense_layers="1.0").experts
    assert shared is not None
    assert (shared.shared_ffn_hidden_size, shared.num_dense_layers) == (3072, 1)
    assert model(num_experts="8", top_k="2").experts == ExpertsSpec(num_experts=8, top_k=2, ffn_hidden_size=12288)


@pytest.mark.parametrize("written", ["", "0", "0.0", "1", "1.0"])
def test_one_expert_is_none(written: str) -> None:
    assert model(num_experts=written, top_k="0.0", dense_layers="0").experts is None


@pytest.mark.parametrize(
    ("cells", "factor"),
    [({"capacity_factor": "1.25"}, 1.25), ({"notes": "capacity factor 1.0 with padding"}, None), ({}, None)],
)
def test_dropped_tokens_are_read_from_their_column(cells: dict[str, str], factor: float | None) -> None:
    experts = model(**EXPERTS, **cells).experts
    assert experts is not None
    assert experts.capacity_factor == factor


def test_experts_without_their_number_are_refused() -> None:
    with refused(ConfigError, "moe_ffn"):
        model(moe_ffn="1536")


def test_more_choices_than_experts_are_refused() -> None:
    with refused(ConfigError, "top_k"):
        model(num_experts="8", top_k="9")


def test_latent_attention_is_read_from_its_sizes() -> None:
    found = model(head_dim="192", mla="MLA 128+64 / v 128, q_lora 1536, kv_lora 512")
    assert (found.latent_attention, found.head_size) == (DEEPSEEK_ATTENTION, 192)
    small = model(mla="128+64 / v 128, kv_lora 512").latent_attention
    assert small == LatentAttentionSpec(query_rank=None, key_value_rank=512, rotary_head_size=64, value_head_size=128)


def test_latent_attention_makes_keys_for_every_head() -> None:
    found = model(mla="128+64 / v 128, q_lora 1536, kv_lora 512", kv_heads="1")
    assert (found.num_query_groups, found.family) == (128, "llama")


def test_as_many_key_heads_as_heads_are_no_sign_of_a_llama() -> None:
    assert model(kv_heads="128").family == "gpt"
    assert model(kv_heads="8").family == "llama"
    assert model(kv_heads="128", gated_mlp="yes").family == "llama"


def test_latent_attention_that_cannot_be_read_is_refused() -> None:
    assert model(mla="no", head_dim="192").latent_attention is None
    with refused(ConfigError, "mla"):
        model(mla="yes")


@pytest.mark.parametrize(
    ("cells", "window"),
    [
        ({"attention_window": "1024, full every 6"}, AttentionWindowSpec(size=1024, full_every=6)),
        ({"attention_window": "4096"}, AttentionWindowSpec(size=4096, full_every=None)),
        ({"attention_window": "no"}, None),
        ({}, None),
    ],
)
def test_windows_are_read_from_their_column(cells: dict[str, str], window: AttentionWindowSpec | None) -> None:
    assert model(**cells).attention_window == window
