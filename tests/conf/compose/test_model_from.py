"""A Hugging Face config.json is taken for the shape of a model, or refused by the name of its key."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from conf.compose.model_from import expand_model_from, model_in
from conf.compose.model_types import model_types
from conf.errors import ConfigError
from conf.types.model_spec import AttentionWindowSpec, ModelSpec
from costs.counts.parameters import num_parameters
from tests.composed import load
from tests.messages import refused

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "max_position_embeddings": 32768,
    "vocab_size": 32000,
}
QWEN = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-5,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "use_sliding_window": False,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "vocab_size": 151936,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "moe_layer_freq": 1,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "num_nextn_predict_layers": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "rope_theta": 10000,
    "vocab_size": 129280,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "hidden_act": "silu",
    "swiglu_limit": 7.0,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "rope_theta": 150000,
    "vocab_size": 201088,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}


def written(folder: Path, content: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("content", "model"),
    [(LLAMA, "llama-3.1-8b"), (MIXTRAL, "mixtral-8x7b"), (QWEN, "qwen3-30b-a3b"), (DEEPSEEK, "deepseek-v3")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_comes_to_the_model_that_we_have_of_it(content: dict[str, Any], model: str, tmp_path: Path) -> None:
    ours = load([f"model={model}"]).model
    found = ModelSpec.model_validate(model_in(written(tmp_path, content)))
    left_open = {"name", "seq_length", "left_out"}  # a file does not say how long the sequences of pretraining were
    if model == "deepseek-v3":
        left_open |= {"rotary_scaling"}  # nor that positions were stretched after it
    assert found.model_dump(exclude=left_open) == ours.model_dump(exclude=left_open)


def test_a_gpt2_has_four_times_as_wide_layers_unless_it_says_so(tmp_path: Path) -> None:
    found = ModelSpec.model_validate(model_in(written(tmp_path, GPT2)))
    assert (found.family, found.ffn_hidden_size, found.seq_length, found.tied_embeddings) == ("gpt", 3072, 1024, True)


def test_a_mistral_has_no_longer_sequences_than_its_window(tmp_path: Path) -> None:
    mistral = {**LLAMA, "model_type": "mistral", "rope_scaling": None}
    assert model_in(written(tmp_path, mistral))["seq_length"] == 4096
    assert model_in(written(tmp_path, {**mistral, "sliding_window": None}))["seq_length"] == 8192


def test_a_qwen2_has_biases_of_queries_keys_and_values_and_its_own_epsilon(tmp_path: Path) -> None:
    qwen2 = {**LLAMA, "model_type": "qwen2", "rope_scaling": None, "rms_norm_eps": 1e-6, "use_sliding_window": False}
    found = load(expand_model_from([f"model_from={written(tmp_path, qwen2)}"]).texts).model
    assert (found.qkv_bias, found.norm_epsilon) == (True, 1e-6)
    plain = ModelSpec.model_validate(model_in(written(tmp_path, LLAMA)))
    assert (plain.qkv_bias, plain.norm_epsilon) == (False, 1e-5)
    gpt = ModelSpec.model_validate(model_in(written(tmp_path, {**GPT2, "layer_norm_epsilon": 1e-6})))
    assert (gpt.qkv_bias, gpt.norm_epsilon) == (False, 1e-6)


def test_a_deepseek_v3_routes_as_its_file_says_and_as_transformers_has_it_where_that_is_silent(tmp_path: Path) -> None:
    silent = {name: value for name, value in DEEPSEEK.items() if name not in ("n_group", "topk_group", "rms_norm_eps")}
    for content, groups in ((silent, (8, 4)), ({**DEEPSEEK, "n_group": 4, "topk_group": 2}, (4, 2))):
        found = load(expand_model_from([f"model_from={written(tmp_path, content)}"]).texts).model
        assert found.experts is not None
        assert (found.experts.num_groups, found.experts.top_groups, found.experts.routed_scale) == (*groups, 2.5)
        assert (found.experts.scores, found.norm_epsilon) == ("sigmoid", 1e-6)


OF_EVERY_TYPE = {
    **{"hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 32},
    **{"vocab_size": 60_000, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512},
    **{"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "kv_lora_rank": 512},
    **{
        "n_routed_experts": 64,
        "num_experts": 8,
        "norm_topk_prob": True,
        "n_embd": 4096,
        "n_layer": 4,
        "n_head": 32,
        "n_shared_experts": 2,
    },
}
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [name for name, kind in model_types().items() if kind.text is None and name != "gpt2"])
def test_a_file_that_names_little_means_what_transformers_takes_it_for(kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        pytest.skip("this transformers does not have the type")
    its_own = {field.name for field in fields(CONFIG_MAPPING[kind])}
    content = {name: value for name, value in OF_EVERY_TYPE.items() if name in its_own}
    theirs: Any = AutoConfig.for_model(kind, **content)
    ours = ModelSpec.model_validate(model_in(written(tmp_path, {"model_type": kind, **content})))
    latent, experts = ours.latent_attention, ours.experts
    positions = getattr(theirs, "rope_parameters", None) or {}
    whole = positions.get("full_attention", positions)
    assert (ours.tied_embeddings, ours.rotary_base or 1e4) == (theirs.tie_word_embeddings, whole.get("rope_theta", 1e4))
    assert ours.norm_epsilon == next((getattr(theirs, name) for name in EPSILONS if hasattr(theirs, name)), 1e-5)
    lengths = [getattr(theirs, "max_position_embeddings", None), whole.get("original_max_position_embeddings")]
    window = theirs.sliding_window if model_types()[kind].fits_window else None
    assert kind == "bloom" or ours.seq_length == min(8192, *filter(None, [*lengths, window]))
    if latent is None:
        assert ours.num_query_groups == (getattr(theirs, "num_key_value_heads", None) or theirs.num_attention_heads)
        size = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
        assert ours.query_size == size * theirs.num_attention_heads
    else:
        assert experts is not None
        assert latent.query_rank == theirs.q_lora_rank
        assert experts.num_dense_layers == getattr(theirs, "first_k_dense_replace", 1)
        assert experts.shared_ffn_hidden_size == theirs.n_shared_experts * theirs.moe_intermediate_size


SILENT = ("layer_types", "sliding_window", "attention_bias", "head_dim", "num_key_value_heads", "rope_scaling")


@pytest.mark.parametrize("silent", [(), SILENT])
def test_a_gpt_oss_has_windows_in_every_second_layer_and_all_of_its_parameters(
    silent: tuple[str, ...], tmp_path: Path
) -> None:
    content = {name: value for name, value in GPT_OSS.items() if name not in silent}
    found = load(expand_model_from([f"model_from={written(tmp_path, content)}"]).texts).model
    assert found.attention_window == AttentionWindowSpec(size=128, full_every=2)
    assert (found.qkv_bias, found.head_size, found.seq_length) == (True, 64, 4096)
    assert num_parameters(found) == 116_829_156_672  # as published


def test_it_is_composed_as_any_model_is_and_single_values_may_follow(tmp_path: Path) -> None:
    folder = tmp_path / "My Llama, é"
    folder.mkdir()
    written(folder, LLAMA)
    texts = expand_model_from(["model.seq_length=2048", f"model_from={folder}", "cluster=selene"]).texts
    settings = load(texts)
    assert (settings.model.name, settings.model.num_query_groups, settings.model.seq_length) == ("my-llama", 8, 2048)
    assert settings.model.rotary_scaling is not None
    assert settings.cluster.name == "selene"
    assert all("model_from" not in text for text in texts)


@pytest.mark.parametrize(
    "content",
    [
        {**LLAMA, "model_type": "mamba"},
        {**LLAMA, "hidden_act": "relu"},
        {**LLAMA, "hidden_size": "4096"},
        {**LLAMA, "num_hidden_layers": -1},
        {**LLAMA, "num_attention_heads": None},
        {**LLAMA, "rope_scaling": {"original_max_position_embeddings": "8k"}},
        {**LLAMA, "rope_scaling": {"rope_theta": "1e6"}},
        {**QWEN, "norm_topk_prob": False},
        {**QWEN, "mlp_only_layers": [1]},
        {**DEEPSEEK, "moe_layer_freq": 2},
        {**DEEPSEEK, "norm_topk_prob": False},
        {**GPT_OSS, "layer_types": ["full_attention", *["sliding_attention"] * 35]},
        {**GPT_OSS, "layer_types": ["full_attention", "sliding_attention"] * 18},
        {**GPT_OSS, "num_hidden_layers": 2**62},
        {**GPT_OSS, "layer_types": 36},
        [1],
    ],
)
def test_what_is_not_understood_is_refused_by_its_key(content: object, tmp_path: Path) -> None:
    with refused(ConfigError, "model_from"):
        model_in(written(tmp_path, content))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with refused(ConfigError, "model_from"):
        model_in(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with refused(ConfigError, "model_from"):
        model_in(tmp_path)
    with refused(ConfigError, "model_from"):  # as of a variable that is not set
        expand_model_from(["model_from="])
    with refused(ConfigError, "model"):
        expand_model_from(["model=tiny", f"model_from={tmp_path}"])
