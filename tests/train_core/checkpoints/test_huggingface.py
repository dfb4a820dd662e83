"""Weights from and for Hugging Face: logits equal to those of `transformers`, whatever is wrong with them named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from conf.compose.model_from import model_in
from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from conf.types.model_spec import ModelSpec, RotaryScaling
from conf.types.schema import Value
from costs.axes import Layout
from tests.composed import load
from tests.train_core.conftest import ExperimentOf, TrialOf, Worlds
from train_core.checkpoints.export import checkpoint_in, export
from train_core.checkpoints.huggingface import Weights, loaded_weights
from train_core.checkpoints.huggingface_config import (
    hugging_face_config,
    require_config,
    require_layout,
    warn_of_weights,
)
from train_core.checkpoints.huggingface_layout import from_rows, source_of, to_rows
from train_core.checkpoints.weight_files import is_weights
from train_core.data.byte_pairs import bytes_tokenizer
from train_core.expert_load import RouterBiases
from train_core.job.trial import run_trial_here
from train_core.model.transformer import Transformer
from train_core.parallel.groups import build_mesh
from train_core.parallel.parallelize import Stage, parallelize
from train_core.process.world import World
from train_core.trial.measurement import Outcome

GPT: dict[str, Value] = {"model.num_layers": 2, "model.hidden_size": 32, "model.num_attention_heads": 4}
GPT |= {"model.num_query_groups": 4, "model.vocab_size": 96, "model.seq_length": 16}
LLAMA = GPT | {
    "model.family": "llama",
    "model.num_query_groups": 2,
    "model.gated_mlp": True,
    "model.tied_embeddings": False,
    "model.rotary_base": 500.0,
}
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
LLAMA_3_1: dict[str, Any] = LLAMA | {"model.rotary_scaling": SCALING}
"""Of the frequencies of its heads some stay, some are blended and some are divided."""
WINDOWED = LLAMA | {"model.attention_window": {"size": 5, "full_every": None}}
QWEN2: dict[str, Any] = LLAMA | {"model.qkv_bias": True, "model.norm_epsilon": 1e-3, "model.tied_embeddings": True}
MIXTRAL: dict[str, Any] = LLAMA | {"model.experts": {"num_experts": 4, "top_k": 2, "ffn_hidden_size": 64}}
QWEN3: dict[str, Any] = LLAMA | {"model.qk_norm": True, "model.head_size": 6, "model.norm_epsilon": 1e-3}
QWEN3_MOE: dict[str, Any] = QWEN3 | {"model.experts": {"num_experts": 4, "top_k": 2, "ffn_hidden_size": 48}}
KINDS = {"gpt-2": GPT, "llama": LLAMA, "llama-3.1": LLAMA_3_1, "qwen2": QWEN2, "mixtral": MIXTRAL}
KINDS |= {"qwen3": QWEN3, "qwen3-moe": QWEN3_MOE}
BIASED = {"model.qkv_bias": True, "model.parts": ["output_bias"]}
KINDS |= {
    "llama, biased": LLAMA | BIASED | {"model.parts": ["output_bias", "mlp_bias"]},
    "llama, biases of attention": LLAMA | BIASED,
    "qwen3, biased": QWEN3 | BIASED,
}
DEEPSEEK: dict[str, Any] = LLAMA | {
    "model.num_query_groups": 4,
    "model.head_size": 10,
    "model.norm_epsilon": 1e-6,
    "model.latent_attention": {"query_rank": 12, "key_value_rank": 10, "rotary_head_size": 4, "value_head_size": 8},
    "model.experts": {
        "num_experts": 8,
        "top_k": 3,
        "ffn_hidden_size": 24,
        "shared_ffn_hidden_size": 48,
        "num_dense_layers": 1,
        "scores": "sigmoid",
        "balance_bias": 0.01,
        "routed_scale": 2.5,
        "num_groups": 4,
        "top_groups": 2,
    },
}
"""As DeepSeek-V3 is: a dense layer, two shared experts, groups of two experts, and biases by which tokens choose."""
PLAIN_DEEPSEEK: dict[str, Any] = DEEPSEEK | {
    "model.latent_attention": DEEPSEEK["model.latent_attention"] | {"query_rank": None},
    "model.experts": DEEPSEEK["model.experts"] | {"balance_bias": 0.0, "num_groups": 1, "top_groups": 1},
}
"""With queries of the hidden state, and routers without biases or groups."""
KINDS |= {"deepseek-v3": DEEPSEEK, "deepseek-v3, plain": PLAIN_DEEPSEEK}
GEMMA: dict[str, Any] = LLAMA | {
    "model.head_size": 6,
    "model.norm_epsilon": 1e-3,
    "model.tied_embeddings": True,
    "model.parts": ["gelu", "scaled_embedding"],
}
GEMMA2: dict[str, Any] = GEMMA | {
    "model.parts": ["gelu", "scaled_embedding", "post_norms"],
    "model.attention_window": {"size": 5, "full_every": 2},
    "model.scores_cap": 1.0,
    "model.logits_cap": 3.0,
    "model.query_pre_attn_scalar": 9.0,
}
GPT_OSS: dict[str, Any] = MIXTRAL | {
    "model.head_size": 6,
    "model.qkv_bias": True,
    "model.parts": ["sinks", "output_bias", "mlp_bias", "router_bias", "capped_activation"],
    "model.attention_window": {"size": 5, "full_every": 2},
}
OLMO2: dict[str, Any] = LLAMA | {"model.norm_epsilon": 1e-3, "model.parts": ["wide_qk_norm", "norms_behind"]}
GEMMA3: dict[str, Any] = GEMMA | {
    "model.qk_norm": True,
    "model.parts": ["gelu", "scaled_embedding", "post_norms", "local_rotary"],
    "model.attention_window": {"size": 5, "full_every": 2},
    "model.query_pre_attn_scalar": 9.0,
}
"""Its layers with a window turn heads by the base 10,000, the others by 500."""
WIDE_GEMMA3 = GEMMA3 | {"model.attention_window": {"size": 20, "full_every": 2}}
KINDS |= {"gemma3": GEMMA3, "gemma3, sequences that fit into the window": WIDE_GEMMA3}
KINDS |= {"olmo2": OLMO2, "gemma": GEMMA, "gemma2": GEMMA2, "gpt-oss": GPT_OSS}
YARN = {"kind": "yarn", "factor": 4.0, "low_freq_factor": 0.5, "high_freq_factor": 2.0, "truncate": False}
YARN |= {"original_max_position_embeddings": 32, "attention_factor": 1.25, "mscale_all_dim": 0.0}
OF_DEEPSEEK = {"truncate": True, "high_freq_factor": 8.0, "mscale_all_dim": 0.75}
KINDS |= {
    "gpt-oss, stretched": GPT_OSS | {"model.rotary_scaling": YARN},
    "deepseek-v3, stretched": DEEPSEEK | {"model.rotary_scaling": YARN | OF_DEEPSEEK},
}
FAMILIES = pytest.mark.parametrize("values", KINDS.values(), ids=KINDS)


def write_config(folder: Path, spec: ModelSpec, said: dict[str, Any]) -> None:
    """A config.json that means this model, but for what it says otherwise."""
    (folder / "config.json").write_text(json.dumps(hugging_face_config(spec, "fp32") | said))


def theirs(values: dict[str, Any], vocab_size: int = 96, kind: str = "", **more: Any) -> Any:
    """A random model of `transformers`, of the same shape."""
    import transformers

    torch.manual_seed(0)
    if values.get("model.family") == "llama":
        scaling = values.get("model.rotary_scaling")
        rope = {"rope_type": "default"} if scaling is None else {"rope_type": "llama3", **scaling}
        if rope.pop("kind", None) is not None:
            fast, slow = rope.pop("high_freq_factor"), rope.pop("low_freq_factor")
            rope |= {"rope_type": "yarn", "beta_fast": fast, "beta_slow": slow}
        if (experts := values.get("model.experts")) is not None:
            kind = "Qwen3Moe" if values.get("model.qk_norm") else "Mixtral"
            more |= {"num_local_experts": experts["num_experts"], "num_experts_per_tok": experts["top_k"]}
            if kind == "Qwen3Moe":
                more |= {"moe_intermediate_size": experts["ffn_hidden_size"], "norm_topk_prob": True}
        if "wide_qk_norm" in values.get("model.parts", ()):
            kind = "Olmo2"
        if "sinks" in values.get("model.parts", ()):
            kind, window = "GptOss", {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
            more |= window | {"head_dim": 6, "attn_implementation": "eager"}
        if values.get("model.qk_norm"):
            kind = kind or "Qwen3"
            more["head_dim"] = values["model.head_size"]
        if (latent := values.get("model.latent_attention")) is not None:
            kind, more = "DeepseekV3", _keys_of_deepseek(values["model.experts"], latent) | {"num_key_value_heads": 4}
        if "gelu" in values.get("model.parts", ()):
            kind, of_gemma = _keys_of_gemma(values)
            more |= of_gemma
        rope |= {"rope_theta": values["model.rotary_base"]}
        if kind == "Gemma3":
            rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
        if "output_bias" in values.get("model.parts", ()) and kind in ("", "Qwen3"):
            kind, more["attention_bias"] = kind or "Llama", True
            more |= {"mlp_bias": True} if "mlp_bias" in values["model.parts"] else {}
        kind = kind or ("Qwen2" if values.get("model.qkv_bias") else "Llama")
        config = getattr(transformers, f"{'Gemma3Text' if kind == 'Gemma3' else kind}Config")(
            vocab_size=vocab_size,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=more.pop("num_key_value_heads", 2),
            max_position_embeddings=16,
            rms_norm_eps=values.get("model.norm_epsilon", 1e-5),
            tie_word_embeddings=values["model.tied_embeddings"],
            rope_parameters=rope,
            initializer_range=0.2,
            **more,
        )
        return _with_random_vectors(getattr(transformers, f"{kind}ForCausalLM")(config).eval())
    gpt = transformers.GPT2Config(
        vocab_size=vocab_size, n_positions=16, n_embd=32, n_inner=64, n_layer=2, n_head=4, initializer_range=0.2
    )
    return _with_random_vectors(transformers.GPT2LMHeadModel(gpt).eval())


def _keys_of_gemma(values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    keys = {"head_dim": 6, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
    if "post_norms" not in values["model.parts"]:
        return "Gemma", keys
    window = {"sliding_window": values["model.attention_window"]["size"]}
    window |= {"layer_types": ["sliding_attention", "full_attention"]}
    if "local_rotary" in values["model.parts"]:
        return "Gemma3", keys | window | {"query_pre_attn_scalar": 9, "attn_implementation": "eager"}
    caps = {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 9}
    return "Gemma2", keys | window | caps | {"attn_implementation": "eager"}  # which alone caps scores


def _keys_of_deepseek(experts: dict[str, Any], latent: dict[str, Any]) -> dict[str, Any]:
    return {
        "n_routed_experts": experts["num_experts"],
        "num_experts_per_tok": experts["top_k"],
        "moe_intermediate_size": experts["ffn_hidden_size"],
        "n_shared_experts": experts["shared_ffn_hidden_size"] // experts["ffn_hidden_size"],
        "first_k_dense_replace": experts["num_dense_layers"],
        "routed_scaling_factor": experts["routed_scale"],
        "n_group": experts["num_groups"],
        "topk_group": experts["top_groups"],
        "q_lora_rank": latent["query_rank"],
        "kv_lora_rank": latent["key_value_rank"],
        "qk_rope_head_dim": latent["rotary_head_size"],
        "qk_nope_head_dim": 10 - latent["rotary_head_size"],
        "v_head_dim": latent["value_head_size"],
    }


def _with_random_vectors(model: Any) -> Any:
    """Biases and the weights of norms too, which would else be zero and one."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, std=0.2)
    if getattr(model.config, "n_group", 1) > 1:
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                torch.nn.init.normal_(buffer, std=0.2)
    return model


def tokens() -> Tensor:
    return torch.randint(96, (16, 3), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits_of(model: Transformer) -> Tensor:
    """(s, b, V) of the token ids above."""
    model.loss = First()
    logits: Tensor = model(tokens(), tokens())
    cap = model.spec.logits_cap
    return logits if cap is None else cap * (logits / cap).tanh()  # which the loss does here


class First(torch.nn.Module):
    def forward(self, logits: Tensor, _: Tensor) -> Tensor:
        return logits


def ours(experiment: Experiment) -> Transformer:
    stage, mesh, cpu = stage_of(experiment, rank=0), build_mesh(Layout.of(experiment), 0), torch.device("cpu")
    if (first_value := loaded_weights(experiment, mesh.world, cpu)) is not None:
        RouterBiases(experiment.model, stage, mesh, cpu).start_from(first_value)
    return stage.chunks[0]


def stage_of(experiment: Experiment, rank: int) -> Stage:
    mesh, cpu = build_mesh(Layout.of(experiment), rank), torch.device("cpu")
    return parallelize(experiment, mesh, cpu, loaded_weights(experiment, mesh.world, cpu))


@pytest.mark.one_in(2)
@pytest.mark.slow
@FAMILIES
def test_imported_weights_give_the_logits_of_transformers(
    values: dict[str, Value], experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    model = theirs(values)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1, "an index of several files was meant"
    imported = ours(experiment_of(values | {"checkpoint.load": str(tmp_path)}))
    with torch.no_grad():
        expected = model(tokens().T).logits.transpose(0, 1)
    torch.testing.assert_close(logits_of(imported), expected, rtol=1e-4, atol=1e-4)


def test_a_mistral_whose_window_holds_every_sequence_is_a_llama(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    model = theirs(LLAMA, kind="Mistral", sliding_window=16)
    model.save_pretrained(tmp_path)
    imported = ours(experiment_of(LLAMA | {"checkpoint.load": str(tmp_path)}))
    with torch.no_grad():
        expected = model(tokens().T).logits.transpose(0, 1)
    torch.testing.assert_close(logits_of(imported), expected, rtol=1e-4, atol=1e-4)


def test_a_mistral_has_the_window_of_transformers_and_so_has_its_export(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    import transformers

    model = theirs(LLAMA, kind="Mistral", sliding_window=5)
    model.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        expected = model(tokens().T).logits.transpose(0, 1)
        wide = theirs(LLAMA, kind="Mistral", sliding_window=None)(tokens().T).logits.transpose(0, 1)
    assert not torch.allclose(expected, wide, atol=1e-3), "the window changes nothing"
    imported = ours(experiment_of(WINDOWED | {"checkpoint.load": str(tmp_path / "theirs")}))
    torch.testing.assert_close(logits_of(imported), expected, rtol=1e-4, atol=1e-4)
    experiment = experiment_of(WINDOWED | {"checkpoint.every_steps": 1, "data.source": "synthetic"})
    (trained,) = worlds(1).run(train_and_save, experiment, tmp_path)
    (tmp_path / "tokenizer.json").write_text(bytes_tokenizer().to_str())
    export(checkpoint_in(tmp_path), tmp_path / "out", "fp32")
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert exported.config.model_type == "mistral"
    with torch.no_grad():
        torch.testing.assert_close(exported(tokens().T).logits.transpose(0, 1), trained, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model.logits_cap": 30.0}, r"model\.logits_cap = 30\.0: has no place"),
        (
            {"model.parts": ["gelu"]},
            r"model\.parts = \['gelu'\]: has no place .*Known: gemma: gelu,",
        ),
        ({"model.parts": GEMMA["model.parts"], "model.qk_norm": True}, r"qk_norm = True: .*layout of gemma.*=false"),
        ({"model.attention_window": {"size": 5, "full_every": 2}}, r"model\.attention_window = .*: has no place"),
        ({"model.attention_window": {"size": 5, "full_every": None}, "model.qkv_bias": True}, r"_window = .* no place"),
    ],
)
def test_what_mistrals_layout_has_no_place_for_is_refused_by_its_key(
    values: dict[str, Value], message: str, experiment_of: ExperimentOf
) -> None:
    with pytest.raises(ConfigError, match=message):
        require_layout(experiment_of(LLAMA | values).model)


def test_a_qwen2_names_a_window_that_it_does_not_use(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    spec = experiment_of(QWEN2).model
    write_config(tmp_path, spec, {"sliding_window": 4, "use_sliding_window": False})
    require_config(tmp_path, spec)


def test_weights_alone_have_no_step_to_go_on_after(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    theirs(LLAMA).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"checkpoint\.resume = True: has no step .* Name a checkpoint, or use"):
        ours(experiment_of(LLAMA | {"checkpoint.load": str(tmp_path), "checkpoint.resume": True}))


def train_and_save(world: World, experiment: Experiment, folder: Path) -> Tensor | None:
    from train_core.training.trainer import Trainer

    trainer = Trainer(experiment, world, folder)
    trainer.step(1)
    with trainer.checkpoints(folder / "checkpoints") as checkpoints:
        checkpoints.save(1)
    return logits_of(trainer.stage.chunks[0])


@pytest.mark.one_in(2)
@FAMILIES
def test_an_exported_checkpoint_gives_the_same_logits_in_transformers(
    values: dict[str, Value], worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    import transformers

    experiment = experiment_of(values | {"checkpoint.every_steps": 1, "data.source": "synthetic"})
    (expected,) = worlds(1).run(train_and_save, experiment, tmp_path)
    tokenizer = bytes_tokenizer()
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    export(checkpoint_in(tmp_path), tmp_path / "out", "fp32")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").encode("Größe") == tokenizer.encode("Größe").ids
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1, "not all honour the umask"
    # Their kernels but this one do not cap scores.
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    assert model.config.bos_token_id is None
    with torch.no_grad():
        measured = model(tokens().T).logits.transpose(0, 1)
    torch.testing.assert_close(measured, expected, rtol=1e-4, atol=1e-4)


@FAMILIES
def test_rows_come_back_in_their_order(values: dict[str, Value], experiment_of: ExperimentOf) -> None:
    spec = experiment_of(values).model
    for name, parameter in Transformer(spec).named_parameters():
        source, value = source_of(name, spec), torch.randn(parameter.shape)
        back = to_rows(from_rows(value, source, spec), source, spec)
        assert torch.equal(back, value) if not source.shift else torch.allclose(back, value, atol=1e-6), name


@pytest.mark.parametrize(
    ("values", "axis", "module"),
    [(LLAMA, "tensor", "feed_forward.up"), (MIXTRAL, "expert", "feed_forward.experts.up")],
    ids=["rows of a tensor rank", "experts of an expert rank"],
)
def test_every_rank_reads_its_own_part(
    values: dict[str, Any], axis: str, module: str, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    theirs(values).save_pretrained(tmp_path)
    whole = values | {"checkpoint.load": str(tmp_path)}
    split = whole | {"parallel.world_size": 2, f"parallel.{axis}_parallel_size": 2}
    alone = World(0, 1, torch.device("cpu"), "gloo")
    first, second = worlds(2).run(weight_of, experiment_of(split), module)
    assert torch.equal(torch.cat((first, second)), weight_of(alone, experiment_of(whole), module))


def experts_read(world: World, experiment: Experiment) -> set[str]:
    """The experts whose tensors a rank takes out of the files, which on many ranks is much to read."""
    read, found = Weights._tensor, set[str]()

    def note(weights: Weights, name: str) -> Tensor:
        if ".experts." in name:
            found.add(name.split(".experts.")[1].split(".")[0])
        return read(weights, name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Weights, "_tensor", note)
        stage_of(experiment, world.rank)
    return found


def test_a_rank_reads_no_experts_of_others(worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path) -> None:
    theirs(MIXTRAL).save_pretrained(tmp_path)
    split = {"checkpoint.load": str(tmp_path), "parallel.world_size": 2, "parallel.expert_parallel_size": 2}
    assert worlds(2).run(experts_read, experiment_of(MIXTRAL | split)) == [{"0", "1"}, {"2", "3"}]


def weight_of(world: World, experiment: Experiment, module: str) -> Tensor:
    return dict(stage_of(experiment, world.rank).named_parameters())[f"layers.1.{module}.weight"].detach()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"shared_ffn_hidden_size": 64},
            r"model\.experts\.shared_ffn_hidden_size = 64: has no place in .* layout of mixtral",
        ),
        ({"num_dense_layers": 1}, r"model\.experts\.num_dense_layers = 1: has no place in .* layout of mixtral"),
        ({"top_k": 3}, r"model\.experts\.top_k = 3: is not the 2 that .* comes to"),
        ({"num_experts": 8}, r"model\.experts\.num_experts = 8: is not the 4 that .* comes to"),
        ({"ffn_hidden_size": 32}, r"w1\.weight has shape \(64, 32\), and model=.* needs \(32, 32\)"),
    ],
)
def test_experts_that_are_not_the_files_are_refused_by_their_key(
    changed: dict[str, int], message: str, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    theirs(MIXTRAL).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=message):
        Weights(str(tmp_path), experiment_of(MIXTRAL | {"model.experts": MIXTRAL["model.experts"] | changed}).model)


@pytest.mark.parametrize(("file", "model"), [(MIXTRAL, LLAMA), (LLAMA, MIXTRAL)], ids=["mixtral", "llama"])
def test_weights_with_experts_are_for_models_with_experts(
    file: dict[str, Any], model: dict[str, Any], experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    theirs(file).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.experts = .*: is not the .* Use .*model\.experts="):
        Weights(str(tmp_path), experiment_of(model).model)


def up_weight_where_only_rank_0_finds_weights(world: World, experiment: Experiment) -> Tensor:
    with pytest.MonkeyPatch.context() as patched:
        if world.rank > 0:
            patched.setattr("train_core.checkpoints.huggingface.is_weights", lambda path: False)
        return weight_of(world, experiment, "feed_forward.up")


def test_rank_0_says_for_all_whether_there_are_weights(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """Ranks that each looked for themselves could go on to different collectives."""
    theirs(LLAMA).save_pretrained(tmp_path)
    experiment = experiment_of(LLAMA | {"checkpoint.load": str(tmp_path), "parallel.world_size": 2})
    first, second = worlds(2).run(up_weight_where_only_rank_0_finds_weights, experiment)
    assert torch.equal(first, second)


def test_a_larger_vocabulary_is_padded_with_the_mean(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    model = theirs(GPT, vocab_size=90)
    model.save_pretrained(tmp_path)
    embedding = ours(experiment_of(GPT | {"checkpoint.load": str(tmp_path)})).embedding
    assert embedding
    weight = embedding.get_parameter("tokens.weight").detach()
    there = model.transformer.wte.weight.detach()
    assert torch.equal(weight[:90], there)
    torch.testing.assert_close(weight[90:], there.mean(0).expand(6, -1))


def changed(tmp_path: Path, values: dict[str, Value], change: Any) -> str:
    """The path of one file of weights, after a change of its tensors."""
    theirs(values).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    return str(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), r"lacks model\.norm\.weight"),
        (
            lambda t: t.update({"model.layers.1.mlp.up_proj.weight": torch.zeros(8, 32)}),
            r"model\.layers\.1\.mlp\.up_proj\.weight has shape \(8, 32\), and .* needs \(64, 32\)",
        ),
        (lambda t: t.update({"lm_head.weight": torch.zeros(97, 32)}), r"lm_head\.weight has shape \(97, 32\)"),
        (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}), r"holds .*q_proj\.bias"),
    ],
    ids=["missing", "another shape", "larger vocabulary", "without a place"],
)
def test_a_tensor_that_differs_is_named(change: Any, message: str, experiment_of: ExperimentOf, tmp_path: Path) -> None:
    path = changed(tmp_path, LLAMA, change)
    with pytest.raises(ConfigError, match=rf"checkpoint\.load = .*{message}"):
        Weights(path, experiment_of(LLAMA).model)


def test_weights_of_other_positions_are_refused(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    path = changed(tmp_path, LLAMA, lambda tensors: None)
    spec = experiment_of(LLAMA | {"model.rotary_base": None}).model
    with pytest.raises(ConfigError, match=r"model\.rotary_base = 10000\.0: .*Use model\.rotary_base=500\.0"):
        Weights(path, spec)


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        (
            GPT,
            {"model.num_attention_heads": 2, "model.num_query_groups": 2},
            "num_attention_heads = 2: is not the 4 ",
        ),
        (LLAMA, {"model.num_attention_heads": 8}, "num_attention_heads = 8: is not the 4 "),
        (LLAMA, {"model.num_query_groups": 4}, "num_query_groups = 4: is not the 2 "),
        (LLAMA, {"model.tied_embeddings": True}, "tied_embeddings = True: is not the false "),
    ],
    ids=["heads of GPT-2", "heads of Llama", "groups", "tied"],
)
def test_weights_of_other_heads_are_refused(
    there: dict[str, Value], here: dict[str, Value], message: str, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    theirs(there).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=rf"model\.{message}"):
        Weights(str(tmp_path), experiment_of(there | here).model)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"rope_scaling": "linear"}, 'rope_scaling = "linear"'),
        ({"rope_theta": "500"}, 'rope_theta = "500"'),
        ({"rms_norm_eps": "1e-5"}, 'rms_norm_eps = "1e-5"'),
        ({"num_attention_heads": 4.5}, "num_attention_heads = 4.5"),
        ({"hidden_act": "gelu"}, 'hidden_act = "gelu"'),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window = true"),
        ({"model_type": "qwen3_moe", "norm_topk_prob": True, "mlp_only_layers": [0]}, r"mlp_only_layers = \[0\]"),
    ],
)
def test_a_config_that_no_model_can_be_read_from_is_refused_by_its_key(
    said: dict[str, Any], problem: str, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    spec = experiment_of(LLAMA).model
    write_config(tmp_path, spec, said)
    with pytest.raises(ConfigError, match=rf"checkpoint\.load = .*config\.json': has {problem}, which is not under"):
        require_config(tmp_path, spec)


def test_what_a_config_gives_as_null_it_does_not_say(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    spec = experiment_of(LLAMA | {"model.rotary_base": None}).model
    write_config(tmp_path, spec, {"rope_theta": None, "rms_norm_eps": None, "rope_scaling": None})
    require_config(tmp_path, spec)


@pytest.mark.parametrize(
    ("here", "said", "message"),
    [
        (
            LLAMA,
            {"model_type": "granite"},
            r'model_type = "granite", .*gpt2, llama, mistral, .*, qwen3_moe, deepseek_v3, gemma, .* alone',
        ),
        (QWEN3_MOE, {"norm_topk_prob": None}, "has no norm_topk_prob. Known: true"),
        (LLAMA, {"partial_rotary_factor": 0.5}, r"partial_rotary_factor = 0\.5, .*whole heads"),
        (LLAMA, {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}}, r"factor = 0\.5, "),
        (LLAMA, {"rope_scaling": {"type": "linear"}, "rope_theta": 500.0}, 'rope_type = "linear", .*yarn alone'),
        (LLAMA, {"rope_scaling": {"rope_type": "longrope"}, "rope_theta": 500.0}, 'rope_type = "longrope", '),
        (GEMMA3, {"rope_local_base_freq": 500.0, "rope_parameters": {}}, r"local_base_freq = 500\.0, .*base 10,000"),
        (LLAMA, {"quantization_config": {"quant_method": "fp8"}}, 'quantization_config.quant_method = "fp8", '),
        (GPT, {"model_type": "gpt_neo"}, 'model_type = "gpt_neo", '),
        (GPT, {"activation_function": "gelu"}, 'activation_function = "gelu", .*GELU in its tanh form'),
        (GPT, {"scale_attn_weights": False}, "scale_attn_weights = false, .*square root of the head size"),
        (GPT, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = true, .*every layer"),
    ],
)
def test_weights_of_another_architecture_are_refused_by_the_key_that_says_so(
    here: dict[str, Value], said: dict[str, Any], message: str, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    spec = experiment_of(here).model
    write_config(tmp_path, spec, said)
    with pytest.raises(ConfigError, match=rf"checkpoint\.load = .*{message}"):
        require_config(tmp_path, spec)


@pytest.mark.parametrize(
    ("here", "there", "said", "message"),
    [
        (GPT, LLAMA, {}, r"family = 'gpt': .*Use model\.family=llama"),
        (LLAMA, GPT, {}, r"family = 'llama': .*Use model\.family=gpt"),
        (LLAMA, LLAMA, {"model_type": "qwen2"}, r"qkv_bias = False: .*Use model\.qkv_bias=true, or other weights"),
        (QWEN2, QWEN2, {"model_type": "mistral"}, r"qkv_bias = True: .*Use model\.qkv_bias=false, or other"),
        (LLAMA, LLAMA, {"model_type": "qwen3"}, r"qk_norm = False: .*Use model\.qk_norm=true, or other weights"),
        (QWEN3, LLAMA, {}, r"qk_norm = True: .*Use model\.qk_norm=false, or other weights"),
        (LLAMA, LLAMA, {"attention_bias": True}, r"qkv_bias = False: .*Use model\.qkv_bias=true, or other weights"),
        (LLAMA | BIASED, LLAMA, {}, r"qkv_bias = True: .*Use model\.qkv_bias=false, or other weights"),
        (LLAMA, LLAMA, {"mlp_bias": True}, r"parts = \[\]: is not the .*mlp_bias.*Use .*model\.parts="),
        (
            LLAMA,
            LLAMA,
            {"rms_norm_eps": 1e-6},
            r"norm_epsilon = 1e-05: is not the 1e-06 .*Use model\.norm_epsilon=1e-06",
        ),
        (GPT, GPT, {"layer_norm_epsilon": 1e-6}, r"norm_epsilon = 1e-05: is not the 1e-06 .* Use model\.norm_eps"),
        (
            LLAMA,
            LLAMA,
            {"model_type": "mistral", "sliding_window": 4},
            r"attention_window = None: is not the .*Use 'model\.attention_window={size:4,full_every:null}'",
        ),
        (WINDOWED, LLAMA, {}, r"attention_window = {'size': 5, .*Use model\.attention_window=null"),
        (LLAMA | {"model.logits_cap": 30.0}, LLAMA, {}, r"logits_cap = 30\.0: .*Use model\.logits_cap=null"),
        (LLAMA_3_1, LLAMA, {}, r"rotary_scaling = {'factor': 8\.0, .*Use model\.rotary_scaling=null"),
        (MIXTRAL, DEEPSEEK, {}, r"latent_attention = None: .*Use 'model\.latent_attention={query_rank:12,"),
        (DEEPSEEK, MIXTRAL, {}, r"latent_attention = {.*Use model\.latent_attention=null, or other weights"),
        (
            LLAMA,
            LLAMA_3_1,
            {},
            r"rotary_scaling = None: .*Use 'model\.rotary_scaling={factor:8\.0,low_freq_factor:1\.0,high_freq",
        ),
    ],
)
def test_weights_of_another_family_or_other_scaling_name_the_key_to_change(
    here: dict[str, Any],
    there: dict[str, Any],
    said: dict[str, Any],
    message: str,
    experiment_of: ExperimentOf,
    tmp_path: Path,
) -> None:
    write_config(tmp_path, experiment_of(there).model, said)
    with pytest.raises(ConfigError, match=rf"model\.{message}"):
        require_config(tmp_path, experiment_of(here).model)


def test_the_override_that_a_refusal_advises_is_understood() -> None:
    text = (
        "model.rotary_scaling={factor:8.0,low_freq_factor:1.0,high_freq_factor:4.0,original_max_position_embeddings:32}"
    )
    scaling = load(["model=llama-2-7b", text]).model.rotary_scaling
    assert scaling == RotaryScaling.model_validate(SCALING)


def test_differences_that_are_taken_are_said(
    experiment_of: ExperimentOf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model.safetensors").touch()
    experiment = experiment_of(LLAMA | {"checkpoint.load": str(tmp_path)})
    write_config(tmp_path, experiment.model, {"model_type": "mistral", "vocab_size": 90, "sliding_window": 32})
    warn_of_weights(experiment, lambda: None)
    rows, window = caplog.messages
    assert "the 6 rows beyond start as the mean of the others, and an export keeps them" in rows
    assert "sliding_window = 32" in window


def test_a_window_that_an_export_keeps_is_not_said_to_be_lost(
    experiment_of: ExperimentOf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model.safetensors").touch()
    experiment = experiment_of(WIDE_GEMMA3 | {"checkpoint.load": str(tmp_path)})
    write_config(tmp_path, experiment.model, {})
    warn_of_weights(experiment, lambda: None)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("beside", "own", "is_said"),
    [(None, "{}", True), ("[]", "{}", True), ("{}", "{}", False), (None, None, False)],
    ids=["no tokenizer there", "another one", "the same one", "ids made elsewhere"],
)
def test_ids_of_another_tokenizer_than_that_of_the_weights_are_said(
    beside: str | None,
    own: str | None,
    is_said: bool,
    experiment_of: ExperimentOf,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "model.safetensors").touch()
    if beside is not None:
        (tmp_path / "tokenizer.json").write_text(beside)
    warn_of_weights(experiment_of({"data.tokenizer": "bytes", "checkpoint.load": str(tmp_path)}), lambda: own)
    assert [f"checkpoint.load = {tmp_path}: the ids of its tokenizer mean other" in m for m in caplog.messages] == (
        [True] if is_said else []
    )


@pytest.mark.slow
def test_differences_reach_the_terminal_and_not_the_log_of_a_rank_alone(
    trial_of: TrialOf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs(GPT, vocab_size=90).save_pretrained(tmp_path / "weights")
    trial = trial_of(GPT | {"checkpoint.load": str(tmp_path / "weights"), "data.source": "synthetic"})
    assert run_trial_here(trial.path).outcome is Outcome.COMPLETED
    assert "the 6 rows beyond start as the mean" in caplog.text  # of this process, which has the terminal


def test_a_head_of_its_own_is_not_dropped(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    spec = experiment_of(GPT).model
    path = changed(tmp_path, GPT, lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"].clone()}))
    Weights(path, spec)
    path = changed(tmp_path, GPT, lambda t: t.update({"lm_head.weight": torch.zeros(96, 32)}))
    with pytest.raises(ConfigError, match=r"model\.tied_embeddings = True: would drop lm_head\.weight"):
        Weights(path, spec)


def test_a_truncated_file_is_no_traceback(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    path = Path(changed(tmp_path, LLAMA, lambda tensors: None))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"checkpoint\.load = .*cannot be read"):
        Weights(str(path), experiment_of(LLAMA).model)


def test_a_model_without_a_place_in_either_layout_is_refused(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.gated_mlp = True: .*Use model\.gated_mlp=false"):
        Weights(str(tmp_path), experiment_of(GPT | {"model.gated_mlp": True}).model)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"model.experts": None},
            r"experts = 'null': has no place .* deepseek_v3, whose layers are experts",
        ),
        ({"scores": "softmax"}, r"experts\.scores = 'softmax': .*Use model\.experts\.scores=sigmoid"),
        ({"shared_ffn_hidden_size": 0}, r"experts\.shared_ffn_hidden_size = 0: .*Use .*shared_ffn_hidden_size=24"),
        ({"shared_ffn_hidden_size": 60}, r"experts\.shared_ffn_hidden_size = 60: .*Use .*ffn_hidden_size=48"),
        ({"num_groups": 8, "top_groups": 3}, r"experts\.num_groups = 8: .*Use model\.experts\.num_groups=4"),
        ({"model.norm_epsilon": 1e-5}, r"norm_epsilon = 1e-05: .*Use model\.norm_epsilon=1e-06"),
    ],
)
def test_what_deepseeks_layout_has_no_place_for_is_refused_by_its_key(
    changed: dict[str, Any], message: str, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    is_of_model = any(key.startswith("model.") for key in changed)
    more = changed if is_of_model else {"model.experts": DEEPSEEK["model.experts"] | changed}
    with pytest.raises(ConfigError, match=rf"model\.{message}"):
        Weights(str(tmp_path), experiment_of(DEEPSEEK | more).model)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"n_group": 8}, r"experts\.num_groups = 4: is not the 8 that .* comes to"),
        ({"n_group": None}, "has no n_group"),
        ({"routed_scaling_factor": 1.0}, r"experts\.routed_scale = 2\.5: is not the 1\.0 "),
        ({"n_routed_experts": 4}, r"experts\.num_experts = 8: is not the 4 that .* comes to"),
        ({"norm_topk_prob": False}, "norm_topk_prob = false, .*add up to one"),
        ({"rope_interleave": False}, "rope_interleave = false, .*turn neighbours"),
        ({"scoring_func": "softmax"}, 'scoring_func = "softmax", .*sigmoid'),
        ({"rope_scaling": {"type": "yarn", "factor": 40}}, r"rotary_scaling = None: is not the .*\"yarn\""),
    ],
)
def test_a_deepseek_of_another_kind_is_refused_by_the_key_that_says_so(
    said: dict[str, Any], message: str, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    spec = experiment_of(DEEPSEEK).model
    write_config(tmp_path, spec, said)
    with pytest.raises(ConfigError, match=message):
        require_config(tmp_path, spec)


def test_biases_of_routers_are_used_or_refused(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    theirs(DEEPSEEK).save_pretrained(tmp_path)
    still = DEEPSEEK | {"model.experts": DEEPSEEK["model.experts"] | {"balance_bias": 0.0}}
    message = r"model\.experts\.balance_bias = 0\.0: would drop model\.layers\.1\.mlp\.gate\.e_score.*Use .*1\.0e-9 to"
    with pytest.raises(ConfigError, match=message):
        Weights(str(tmp_path), experiment_of(still).model)


def test_layers_that_predict_further_tokens_are_refused_by_their_key(
    experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    path = changed(tmp_path, DEEPSEEK, lambda t: t.update({"model.layers.2.eh_proj.weight": torch.zeros(32, 64)}))
    with pytest.raises(ConfigError, match=r"holds model\.layers\.2\.eh_proj\.weight, of num_nextn_predict_layers, "):
        Weights(path, experiment_of(DEEPSEEK).model)


def test_a_deepseeks_config_comes_back_to_the_same_model(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    spec = experiment_of(DEEPSEEK).model
    (tmp_path / "config.json").write_text(json.dumps(hugging_face_config(spec, "fp32")))
    read = ModelSpec.model_validate(model_in(tmp_path))
    unsaid: Any = {"name": True, "head_size": True, "experts": {"balance_bias", "balance_loss"}}
    assert read.model_dump(exclude=unsaid) == spec.model_dump(exclude=unsaid)


def test_a_checkpoint_of_this_trainer_is_not_taken_for_weights(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text(json.dumps({}))
    assert not is_weights(str(tmp_path))
    assert not is_weights(None)


def test_a_file_that_is_gone_is_not_taken_for_weights(tmp_path: Path) -> None:
    assert not is_weights(str(tmp_path / "model.safetensors"))


def test_a_home_folder_is_written_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").touch()
    assert is_weights("~/weights")
