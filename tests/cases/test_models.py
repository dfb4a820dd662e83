"""Files of models as people publish them: priced for what they say, or refused by the key that is not understood."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.arguments import _warn
from cli.main import main
from conf.compose.model_from import expand_model_from, model_in
from conf.errors import ConfigError
from conf.types.model_spec import ModelSpec
from costs.counts.parameters import num_parameters
from tests.cli.commands.plan.conftest import FEW
from tests.composed import composed, load
from tests.messages import refused

LLAMA = {
    "model_type": "llama",
    **{"hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4},
    **{"num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 4096},
}
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
STATED = ("cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=16", *FEW)


def file_of(folder: Path, **changed: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA | changed))
    return path


def model_of(path: Path, *texts: str) -> ModelSpec:
    return load(expand_model_from([f"model_from={path}", *texts]).texts).model


def test_a_mistrals_window_is_priced_where_sequences_are_longer(tmp_path: Path) -> None:
    path = file_of(tmp_path, model_type="mistral", sliding_window=1024, max_position_embeddings=32768)
    assert model_of(path).seq_length == 1024
    model = model_of(path, "model.seq_length=4096")
    assert model.narrow_window == 1024
    assert model.seen_share == pytest.approx(1 - (3 / 4) ** 2)


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        # Queries, keys and values, the projection behind attention, and three matrices of the feed-forward layer.
        ({"attention_bias": True}, 4 * (2048 + 2 * 512 + 2048)),
        ({"mlp_bias": True}, 4 * (2 * 8192 + 2048)),
    ],
)
def test_biases_of_a_llama_are_counted(said: dict[str, Any], missing: int, tmp_path: Path) -> None:
    plain = num_parameters(model_of(file_of(tmp_path)))
    assert num_parameters(model_of(file_of(tmp_path, **said))) == plain + missing


@pytest.mark.parametrize(
    "key",
    ["a_key_that_nobody_knows", "final_logit_softcapping", "use_parallel_residual", "partial_rotary_factor", "alibi"],
)
def test_a_key_that_is_not_understood_is_refused_by_its_name(key: str, tmp_path: Path) -> None:
    with refused(ConfigError, "model_from"):
        model_of(file_of(tmp_path, **{key: 0.5}))


def test_a_key_of_rotary_positions_that_is_not_understood_is_refused_too(tmp_path: Path) -> None:
    with refused(ConfigError, "model_from"):
        model_of(file_of(tmp_path, rope_scaling={"rope_type": "linear", "factor": 2.0, "turned": 0.5}))


SMALL: list[tuple[int, dict[str, Any]]] = json.loads(Path(__file__).with_name("published_keys.json").read_text())
"""Small models with the keys that published files of their types have, and what transformers counts of their text."""


@pytest.mark.parametrize(("parameters", "content"), SMALL, ids=[content["model_type"] for _, content in SMALL])
def test_all_keys_of_published_files_are_understood(parameters: int, content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    model = ModelSpec.model_validate(model_in(tmp_path))
    assert num_parameters(model) == parameters
    for key in ("num_nextn_predict_layers", "vision_config", "attention_chunk_size", "dual_chunk_attention_config"):
        says = content.get(key) or content.get("text_config", {}).get(key)
        assert (key in (model.left_out or "")) is bool(says)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "positions stretched by dynamic"),
        ({"model_type": "qwen2", "dual_chunk_attention_config": {"chunk_size": 4}}, "dual_chunk_attention_config"),
        (
            {**MIXTRAL, "output_router_logits": True},
            "output_router_logits = true",
        ),
        ({"model_type": "olmo", "clip_qkv": 8.0}, "clip_qkv = 8.0"),
    ],
)
def test_what_is_neither_priced_nor_trained_is_told(content: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert model_of(file_of(tmp_path, **content)).left_out == said


@pytest.mark.parametrize(
    "content",
    [
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        {"rope_scaling": {"rope_type": 3}},
        {"rope_scaling": {"rope_type": "spiral"}},
        {"model_type": "mistral", "attention_bias": True},
        {"model_type": "mistral", "sliding_window": [1024, None]},
        {"model_type": "qwen2", "use_sliding_window": True},
        {"model_type": "qwen3", "mlp_bias": True},
        {"tie_word_embeddings": "yes"},
        {"num_attention_heads": [16, 8, 16, 8]},
        {"model_type": "gpt_neox", "hidden_act": "gelu"},
        {"model_type": "gemma3_text", "hidden_act": None, "use_bidirectional_attention": True},
        {"model_type": "jamba"},
        {"model_type": None},
    ],
)
def test_what_makes_another_model_of_it_is_refused(content: dict[str, Any], tmp_path: Path) -> None:
    with refused(ConfigError, "model_from"):
        model_of(file_of(tmp_path, **content))


def test_keys_that_change_nothing_pass(tmp_path: Path) -> None:
    said = {"torch_dtype": "bfloat16", "bos_token_id": 1, "attention_dropout": 0.1, "pretraining_tp": 2}
    assert model_of(file_of(tmp_path, **said, attention_bias=False, head_dim=None)).parts == ()


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Runs `trisweep plan` and returns what it prints and what it warns of, each without its line breaks."""

    def run(*arguments: str) -> tuple[str, str]:
        _warn.cache_clear()  # which lasts for a process, that commands share here
        monkeypatch.setattr(sys, "argv", ["trisweep", "plan", *arguments])
        with pytest.raises(SystemExit):
            main()
        printed = capsys.readouterr()
        return " ".join(printed.out.replace("#", " ").split()), " ".join(printed.err.split())

    return run


@pytest.mark.parametrize("program", ["megatron-lm", "hf-trainer"])
def test_stretched_positions_are_said_once_and_in_the_command(program: str, tmp_path: Path, plan: Any) -> None:
    path = file_of(
        tmp_path, rope_scaling={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}
    )
    said, warned = plan(f"model_from={path}", *STATED, "--devices", "8", "--as", program)
    assert warned.count("positions are stretched by yarn") == 1
    assert "Not in these flags: the model's positions, which are stretched by yarn." in said


@pytest.mark.parametrize(("trainer", "count"), [("trisweep", 0), ("megatron-lm", 1)])
def test_a_trainer_that_is_not_told_of_stretched_positions_is_named_once(trainer: str, count: int) -> None:
    scaling = "{factor:8.0,low_freq_factor:1.0,high_freq_factor:32.0,original_max_position_embeddings:4096,kind:yarn}"
    doubts = composed([f"trainer={trainer}", "model=llama-3.1-8b", f"model.rotary_scaling={scaling}"]).doubts
    assert len([doubt for doubt in doubts if "stretched by yarn" in doubt]) == count


def test_a_llama3_scaling_that_megatron_does_not_have_built_in_is_said(tmp_path: Path, plan: Any) -> None:
    llama3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    for length, differs in ((8192, False), (4096, True)):
        path = file_of(tmp_path, rope_scaling={**llama3, "original_max_position_embeddings": length})
        said, _ = plan(f"model_from={path}", *STATED, "--devices", "8", "--as", "megatron-lm")
        assert ("whatever the model says, which are 1, 4 and 4096 here" in said) is differs


def test_biases_of_all_products_are_flags_of_megatron_and_others_are_refused(tmp_path: Path, plan: Any) -> None:
    said, _ = plan(f"model_from={file_of(tmp_path)}", *STATED, "--devices", "8", "--as", "megatron-lm")
    assert "--disable-bias-linear" in said
    path = file_of(tmp_path, attention_bias=True, mlp_bias=True)
    said, _ = plan(f"model_from={path}", *STATED, "--devices", "8", "--as", "megatron-lm")
    assert "--add-qkv-bias" in said
    assert "--disable-bias-linear" not in said
    said, caught = plan(f"model_from={path}", *STATED, "--devices", "8", "--as", "torchtitan")
    assert said == ""
    assert "output_bias" in caught
    path = file_of(tmp_path, attention_bias=True)
    assert (
        "without these parts: output_bias"
        in plan(f"model_from={path}", *STATED, "--devices", "8", "--as", "megatron-lm")[1]
    )


def test_a_window_that_a_command_lacks_is_named_and_one_that_holds_a_sequence_is_none(
    tmp_path: Path, plan: Any
) -> None:
    path = file_of(tmp_path, model_type="mistral", sliding_window=1024, max_position_embeddings=32768)
    asked = (f"model_from={path}", *STATED, "--devices", "8", "--as", "megatron-lm")
    said, _ = plan(*asked)  # sequences are no longer than the window
    assert "--seq-length 1024" in said
    said, caught = plan(*asked, "model.seq_length=4096")
    assert said == ""
    assert "model.attention_window = 1024: trainer megatron-lm: this file gives it models without windows" in caught


HUNYUAN = {
    **{
        "model_type": "hunyuan_v1_dense",
        "attention_head_dim": 128,
        "head_dim": 128,
        "norm_type": "rms",
        "use_qk_norm": True,
    },
    **{"use_cla": False, "cla_share_factor": 2, "add_classification_head": False, "class_num": 0, "pool_type": "last"},
    "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "mscale_all_dim": 0.0},
}
GPT2 = {
    **{
        "model_type": "gpt2",
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 32,
        "n_ctx": 32,
        "vocab_size": 100,
    },
    **{"activation_function": "gelu_new", "n_special": 0, "predict_special_tokens": True, "_num_labels": 1},
}
ERNIE = {
    **{"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 64, "moe_gate": "topk"},
    **{"moe_use_hard_gate": False, "moe_layer_end_index": 3},
}
FLASH = {
    **{"model_type": "glm4_moe_lite", "n_routed_experts": 8, "moe_intermediate_size": 64, "num_experts_per_tok": 2},
    **{"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "num_key_value_heads": 16},
}
SCOUT = {"model_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 128}


@pytest.mark.parametrize(
    "content",
    [LLAMA | HUNYUAN, GPT2, LLAMA | ERNIE, LLAMA | {"activation": "swiglu"}],
    ids=["hunyuan", "gpt2", "ernie", "falcon3"],
)
def test_keys_of_older_published_files_change_nothing(content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert num_parameters(ModelSpec.model_validate(model_in(tmp_path))) > 0


@pytest.mark.parametrize(
    ("content", "dense"),
    [
        (FLASH | {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}, 1),
        (FLASH | {"mlp_layer_types": ["dense", "dense", "sparse", "sparse"]}, 2),
        (FLASH | {"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]}, None),
        (FLASH | {"mlp_layer_types": ["dense", "sparse"]}, None),
        (FLASH | {"mlp_layer_types": 1}, None),
        (ERNIE | {"moe_layer_end_index": -1}, 1),
        (ERNIE | {"moe_layer_end_index": 2}, None),
        (SCOUT | {"moe_layers": [0, 1, 2, 3]}, 0),
        (SCOUT | {"moe_layers": [1, 3]}, None),
    ],
)
def test_layers_with_experts_are_those_that_the_file_lists(
    content: dict[str, Any], dense: int | None, tmp_path: Path
) -> None:
    path = file_of(tmp_path, **content)
    if dense is None:
        with refused(ConfigError, "model_from"):
            model_of(path)
        return
    experts = model_of(path).experts
    assert experts is not None
    assert experts.num_dense_layers == dense


def test_windows_that_a_file_lists_are_read_where_the_type_has_none_by_itself(tmp_path: Path) -> None:
    dots = {"model_type": "dots1", "n_routed_experts": 8, "moe_intermediate_size": 64, "num_experts_per_tok": 2}
    kinds = ["sliding_attention", "full_attention"] * 2
    assert model_of(file_of(tmp_path, **dots, sliding_window=128)).attention_window is None
    window = model_of(file_of(tmp_path, **dots, sliding_window=128, layer_types=kinds)).attention_window
    assert window is not None
    assert (window.size, window.full_every) == (128, 2)


@pytest.mark.parametrize("kind", ["internlm2", "mimo", "xverse", "deepseek", "hunyuan_v1_moe", "lfm2", "qwen2_5_vl"])
def test_no_other_type_is_proposed_for_one_that_is_not_known(kind: str, tmp_path: Path) -> None:
    with refused(ConfigError, "model_from"):
        model_of(file_of(tmp_path, model_type=kind))


@pytest.mark.parametrize("kind", ["gemma4_text", "llama5", 3])
def test_a_text_part_of_an_unknown_type_is_not_read_as_another(kind: object, tmp_path: Path) -> None:
    text = LLAMA | {"model_type": kind}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    with refused(ConfigError, "model_from"):
        model_in(tmp_path)


def test_keys_of_generating_and_of_pictures_change_nothing(tmp_path: Path) -> None:
    plain = num_parameters(model_of(file_of(tmp_path)))
    assert num_parameters(model_of(file_of(tmp_path, cache_implementation="hybrid"))) == plain
    text = LLAMA | FLASH | {"model_type": "kimi_k2"}
    alone = num_parameters(model_of(file_of(tmp_path, **text)))
    whole = {"model_type": "kimi_k25", "use_unified_vision_chunk": True, "video_placeholder": "|", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert num_parameters(ModelSpec.model_validate(model_in(tmp_path))) == alone
