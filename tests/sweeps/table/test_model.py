"""The model of a row: its family, its experts and its attention."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from conf.types.model_spec import AttentionWindowSpec, ExpertsSpec, LatentAttentionSpec, ModelSpec
from sweeps.table.layout import model_of
from sweeps.table.remarks import with_columns

SIZES = {"layers": "4", "hidden": "5120", "heads": "128", "seq": "4096", "ffn_hidden": "12288"}
DEEPSEEK_ATTENTION = LatentAttentionSpec(query_rank=1536, key_value_rank=512, rotary_head_size=64, value_head_size=128)
EXPERTS = {"num_experts": "160.0", "top_k": "6.0", "moe_ffn": "1536.0"}


def model(**cells: str) -> ModelSpec:
    return model_of(with_columns({**SIZES, **cells}), 1)


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
    [({"capacity_factor": "1.25"}, 1.25), ({"notes": "all-to-all, capacity factor 1.0 with padding"}, 1.0), ({}, None)],
)
def test_dropped_tokens_are_read_from_a_column_or_the_notes(cells: dict[str, str], factor: float | None) -> None:
    experts = model(**EXPERTS, **cells).experts
    assert experts is not None
    assert experts.capacity_factor == factor


def test_experts_without_their_number_are_refused() -> None:
    with pytest.raises(ConfigError, match="moe_ffn = '1536': needs num_experts"):
        model(moe_ffn="1536")


def test_more_choices_than_experts_are_refused() -> None:
    with pytest.raises(ConfigError, match="top_k = '9': is out of range"):
        model(num_experts="8", top_k="9")


def test_latent_attention_is_read_from_its_sizes() -> None:
    found = model(head_dim="192", notes="fused; MLA 128+64 / v 128, q_lora 1536, kv_lora 512")
    assert (found.latent_attention, found.head_size) == (DEEPSEEK_ATTENTION, 192)
    small = model(notes="MLA 128+64 / v 128, kv_lora 512").latent_attention
    assert small == LatentAttentionSpec(query_rank=None, key_value_rank=512, rotary_head_size=64, value_head_size=128)


@pytest.mark.parametrize("name", ["deepseekv2_tp1_ep8", "DeepSeek-V3", "deepseek-r1", "Kimi-K2"])
def test_latent_attention_is_known_of_some_models(name: str) -> None:
    assert model(model=name).latent_attention == DEEPSEEK_ATTENTION


def test_the_lite_model_makes_queries_from_the_hidden_state() -> None:
    latent = model(model="DeepSeek-V2-Lite").latent_attention
    assert latent is not None
    assert (latent.query_rank, latent.key_value_rank) == (None, 512)


def test_latent_attention_makes_keys_for_every_head() -> None:
    found = model(model="deepseek-v3", kv_heads="1")
    assert (found.num_query_groups, found.family) == (128, "llama")


@pytest.mark.parametrize("name", ["deepseek-moe-16b", "nemotron4-340b"])
def test_other_models_have_no_latent_attention(name: str) -> None:
    found = model(model=name, head_dim="192")
    assert (found.latent_attention, found.head_size) == (None, 192)


def test_as_many_key_heads_as_heads_are_no_sign_of_a_llama() -> None:
    assert model(kv_heads="128").family == "gpt"
    assert model(kv_heads="8").family == "llama"
    assert model(kv_heads="128", gated_mlp="yes").family == "llama"


def test_latent_attention_is_a_column_too_and_what_cannot_be_read_is_refused() -> None:
    assert model(mla="128+64 / v 128, q_lora 1536, kv_lora 512").latent_attention == DEEPSEEK_ATTENTION
    assert model(model="deepseek-v3", mla="no").latent_attention is None
    with pytest.raises(ConfigError, match="mla = 'yes': is no latent attention"):
        model(mla="yes")


@pytest.mark.parametrize(
    ("cells", "window"),
    [
        ({"attention_window": "1024, full every 6"}, AttentionWindowSpec(size=1024, full_every=6)),
        ({"attention_window": "4096"}, AttentionWindowSpec(size=4096, full_every=None)),
        ({"model": "gpt-oss-120b"}, AttentionWindowSpec(size=128, full_every=2)),
        ({"model": "GPT OSS 20B", "attention_window": "no"}, None),
        ({"model": "llama3-8b"}, None),
    ],
)
def test_windows_are_read_from_a_column_or_the_name_of_the_model(
    cells: dict[str, str], window: AttentionWindowSpec | None
) -> None:
    assert model(**cells).attention_window == window
