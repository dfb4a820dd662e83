"""The facts of a model in the config.json beside its weights that shapes of tensors do not show. No torch.

The file is read as `model_from` reads it, and must come to the model that is trained. Whatever else would make the
weights compute something else than they were trained for is refused by the name of its key; what differs and is still
taken is said.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conf.compose.model_from import HuggingFaceConfig, Shape, shape_of
from conf.compose.model_types import model_types
from conf.errors import ConfigError
from conf.folders import package_content
from conf.overrides import for_a_shell
from conf.plan.experiment import Experiment
from conf.types.model_spec import ModelSpec, RotaryScaling
from conf.types.schema import ROTARY_BASE, Dtype
from train_core.checkpoints.checkpoint_folder import KEY
from train_core.checkpoints.weight_files import is_weights, left_aside

LOGGER = logging.getLogger(__name__)

TREE = package_content("huggingface_config.yaml", "train_core.checkpoints")
CLASSES: dict[str, str] = TREE["classes"]
PARTS_OF = {kind: frozenset(parts.split()) for kind, parts in TREE["parts"].items()}
COMPARED = (
    *("family", "qkv_bias", "qk_norm", "latent_attention", "num_attention_heads", "num_query_groups"),
    *("tied_embeddings", "norm_epsilon", "rotary_base", "rotary_scaling"),
    *("logits_cap", "scores_cap", "query_pre_attn_scalar"),
)
"""Keys of the model that the shapes of tensors do not tell: 4 heads of 8 are as wide as 2 of 16."""

COMPARED_OF_EXPERTS = (
    *("num_experts", "top_k", "shared_ffn_hidden_size", "num_dense_layers"),
    *("scores", "routed_scale", "num_groups", "top_groups"),
)
PLAIN_ROUTING = {"scores": "softmax", "routed_scale": 1.0, "num_groups": 1, "top_groups": 1}
"""Of types whose files do not name them."""


def model_type_of(spec: ModelSpec) -> str:
    """Hugging Face's type of such a model."""
    if spec.family == "gpt":
        return "gpt2"
    if (kind := next((kind for kind, parts in PARTS_OF.items() if parts == {*spec.parts}), None)) is not None:
        return kind
    if spec.latent_attention is not None:
        return "deepseek_v3"
    if spec.experts is not None:
        return "qwen3_moe" if spec.qk_norm else "mixtral"
    plain = "llama" if spec.narrow_window is None else "mistral"
    # Qwen2 has no biases behind attention; a Llama with `attention_bias` has those of queries, keys and values too.
    return "qwen3" if spec.qk_norm else "qwen2" if spec.qkv_bias and "output_bias" not in spec.parts else plain


def require_config(weights: Path, spec: ModelSpec) -> HuggingFaceConfig | None:
    """Check that a config.json beside the weights means this model, and return it; nothing has to lie there.

    Raises:
        ConfigError: it means something else, or cannot be read.
    """
    if not (path := _beside(weights, "config.json")).exists():
        return None
    config = HuggingFaceConfig.read(path, KEY)
    _require_layers(config)
    _require_computed_here(config, spec)
    _require_same(shape_of(config), spec, path)
    return config


def _require_layers(config: HuggingFaceConfig) -> None:
    """Its layers must have a layout here, and their weights must be whole."""
    kind = config.text("model_type")
    if kind not in CLASSES:
        remedy = "Use weights of one of these, or checkpoint.load=null for random ones."
        raise _other_model(config, "model_type", kind, f"{', '.join(CLASSES)} alone", remedy)
    if quantization := config.mapping("quantization_config"):
        remedy = "Use the weights that were not quantized, or convert these to bf16."
        method = quantization.get("quant_method")
        raise _other_model(config, "quantization_config.quant_method", method, "with whole weights alone", remedy)


def _require_same(shape: Shape, spec: ModelSpec, path: Path) -> None:
    """The keys of the model must be those that the file comes to."""
    for key, ours, theirs in _compared(shape, spec):
        if ours != theirs:
            problem = f"is not the {json.dumps(theirs)} that {path} comes to"
            raise ConfigError(key, ours, problem, f"Use {for_a_shell(key, theirs)}, or other weights.")


def require_layout(spec: ModelSpec) -> None:
    """Raises ConfigError where no layout has a place for this model: its config.json would come to another one."""
    kind, experts = model_type_of(spec), spec.experts
    problem = f"has no place in the Hugging Face layout of {kind}"
    if experts is None and kind in ("deepseek_v3", "gpt_oss"):
        raise ConfigError("model.experts", "null", f"{problem}, whose layers are experts", "Choose experts.")
    shape = shape_of(HuggingFaceConfig.of(Path("config.json"), hugging_face_config(spec, "fp32"), KEY))
    head_size = shape["head_size"] or shape["hidden_size"] // shape["num_attention_heads"]
    compared = [
        *_compared(shape, spec),
        ("model.gated_mlp", spec.gated_mlp, shape["gated_mlp"]),
        ("model.head_size", spec.query_size // spec.num_attention_heads, head_size),
    ]
    if experts is not None and kind != "deepseek_v3":
        compared.append(("model.experts.balance_bias", experts.balance_bias, 0.0))
    for key, ours, theirs in compared:
        if ours != theirs:
            known = "; ".join(f"{name}: {','.join(sorted(parts))}" for name, parts in PARTS_OF.items())
            known = f". Known: {known}" if key == "model.parts" else ""
            raise ConfigError(key, ours, f"{problem}{known}", f"Use {for_a_shell(key, theirs)}.")


def _compared(shape: Shape, spec: ModelSpec) -> Iterator[tuple[str, object, object]]:
    """Keys of the model that the shapes of tensors do not tell, with its values and those of a file."""
    ours = spec.model_dump()
    ours["rotary_base"] = (spec.rotary_base or ROTARY_BASE) if spec.family == "llama" else None
    if spec.query_pre_attn_scalar == spec.query_size // spec.num_attention_heads:
        ours["query_pre_attn_scalar"] = None
    for key in COMPARED:
        yield f"model.{key}", ours[key], shape.get(key)
    yield "model.parts", sorted(spec.parts), sorted(shape["parts"])
    yield "model.attention_window", _narrow_window(ours, spec), _narrow_window(shape, spec)
    here, there = ours["experts"], shape["experts"]
    if here is None or there is None:
        yield "model.experts", here, there
        return
    here, there = _grouped(here), _grouped(PLAIN_ROUTING | there)
    for key in COMPARED_OF_EXPERTS:
        yield f"model.experts.{key}", here[key], there[key]


def _narrow_window(shape: Shape, spec: ModelSpec) -> Shape | None:
    """The window; None where sequences fit into it, so that it computes nothing else than none."""
    is_felt = "local_rotary" in spec.parts  # by positions
    if (window := shape.get("attention_window")) is None or (window["size"] >= spec.seq_length and not is_felt):
        return None
    has_full = window["full_every"] is not None and window["full_every"] <= spec.num_layers
    return window if has_full else window | {"full_every": None}


def _grouped(experts: Shape) -> Shape:
    """Experts of which tokens choose among all groups have none."""
    is_plain = experts["top_groups"] == experts["num_groups"]
    return experts | {"num_groups": 1, "top_groups": 1} if is_plain else experts


def _require_computed_here(config: HuggingFaceConfig, spec: ModelSpec) -> None:
    """What no key of the model says must be as this trainer computes it."""
    local = config.mapping("rope_parameters").get("sliding_attention")
    said = config.rotary.content | config.content
    said |= {"rope_local_base_freq": local.get("rope_theta")} if isinstance(local, dict) else {}
    for key, fixed in TREE["fixed"][spec.family].items():
        value = said.get(key)
        if value is not None and value not in fixed["values"]:
            remedy = (
                f"Use weights with {key} = {json.dumps(fixed['values'][0])}, or checkpoint.load=null for random ones."
            )
            raise _other_model(config, key, value, fixed["computes"], remedy)
    if (kind := config.rotary_type) not in (None, "default", "llama3", "yarn"):
        remedy = "Use weights of a model with one of these, or checkpoint.load=null for random ones."
        raise _other_model(config, "rope_type", kind, "positions of types default, llama3 and yarn alone", remedy)


def warn_of_weights(experiment: Experiment, tokenizer: Callable[[], str | None]) -> None:
    """Log what of `checkpoint.load` is left aside, and where its weights differ from the model and text that take them.

    Args:
        tokenizer: gives the content of the `tokenizer.json` of the text; None where none is read.

    Raises:
        ConfigError: see `require_config`.
    """
    load = experiment.checkpoint.load
    if load is None or not is_weights(load):
        return
    weights = Path(load).expanduser()
    if others := left_aside(weights):
        LOGGER.warning("%s: these files there are not read: %s", weights, ", ".join(others))
    if (config := require_config(weights, experiment.model)) is not None:
        for difference in _differences(config, experiment.model):
            LOGGER.warning("%s names %s", config.path, difference)
    own, beside = tokenizer(), _beside(weights, "tokenizer.json")
    if own is not None and (not beside.exists() or beside.read_text() != own):
        LOGGER.warning(
            "checkpoint.load = %s: the ids of its tokenizer mean other text than those of data.tokenizer = %s; to keep"
            " them, use data=huggingface with it as data.tokenizer, or an indexed dataset that it made",
            load,
            experiment.data.tokenizer,
        )


def _beside(weights: Path, name: str) -> Path:
    return (weights if weights.is_dir() else weights.parent) / name


def _other_model(config: HuggingFaceConfig, key: str, value: object, computes: str, remedy: str) -> ConfigError:
    problem = f"config.json names {key} = {json.dumps(value)}, and this trainer computes {computes}"
    return ConfigError(KEY, str(config.path.parent), problem, remedy)


def _differences(config: HuggingFaceConfig, spec: ModelSpec) -> list[str]:
    """The values of a file that are taken although they differ, in words that follow `names`."""
    found = []
    if (rows := config.count("vocab_size", spec.vocab_size)) < spec.vocab_size:
        found.append(
            f"vocab_size = {rows}, and model.vocab_size = {spec.vocab_size}; the {spec.vocab_size - rows} rows beyond"
            " start as the mean of the others, and an export keeps them"
        )
    if config.truth("reorder_and_upcast_attn", False):
        found.append("reorder_and_upcast_attn = true; this trainer computes scores in precision.dtype")
    window, exported = config.window, hugging_face_config(spec, "fp32").get("sliding_window")
    if window is not None and window >= spec.seq_length and window != exported:
        found.append(f"sliding_window = {window}; sequences here fit into it, and an export does not have it")
    return found


SHORT_NORM_EPSILON = 1e-6
"""Of the norms of short vectors, whatever the others have. Source: transformers, DeepseekV3Attention."""
TORCH_NAMES: dict[Dtype, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def hugging_face_config(spec: ModelSpec, dtype: Dtype) -> dict[str, Any]:
    """The `config.json` from which `transformers` builds the model around the weights."""
    kind, head_size = model_type_of(spec), spec.query_size // spec.num_attention_heads
    values = {  # by the names that Llama's keys have
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        "torch_dtype": TORCH_NAMES[dtype],
        # Texts are one stream here: no id begins or ends one, and the defaults of `transformers` may lie outside.
        "bos_token_id": None,
        "eos_token_id": None,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": spec.tied_embeddings,
        "max_position_embeddings": spec.seq_length,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.ffn_hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_query_groups,
        "head_dim": head_size,
        "rms_norm_eps": spec.norm_epsilon,
        "rope_theta": spec.rotary_base or ROTARY_BASE,
        **_keys_of_parts(spec, head_size),
    }
    of_type, experts = model_types()[kind], spec.experts
    values |= {key: True for part, key in of_type.parts.items() if isinstance(key, str) and part in spec.parts}
    if spec.rotary_scaling is not None:
        values["rope_scaling"] = _stretching(spec.rotary_scaling)
    if kind == "mistral":
        values["sliding_window"] = spec.narrow_window
    if experts is not None and of_type.scores is not None:
        values |= {"num_experts": experts.num_experts, "num_experts_per_tok": experts.top_k}
        values |= {"moe_intermediate_size": experts.ffn_hidden_size}
        values |= {"norm_topk_prob": True} if "norm_topk_prob" in of_type.only else {}
    values |= _latent_keys(spec) if kind == "deepseek_v3" else {}
    named = ((of_type.names.get(key, (key,)), value) for key, value in values.items())
    return {names[0]: value for names, value in named if names}


def _rope(spec: ModelSpec) -> dict[str, Any]:
    """`rope_parameters`, for types whose default is another one."""
    return _stretching(spec.rotary_scaling) | {"rope_theta": spec.rotary_base or ROTARY_BASE}


def _stretching(scaling: RotaryScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"rope_type": "default"}
    if scaling.kind == "llama3":
        return {"rope_type": "llama3", **scaling.model_dump()}
    return {
        "rope_type": "yarn",
        "factor": scaling.factor,
        "beta_slow": scaling.low_freq_factor,
        "beta_fast": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
        "truncate": scaling.truncate,
        "attention_factor": scaling.attention_factor,
        "mscale_all_dim": scaling.mscale_all_dim,
    }


def _keys_of_parts(spec: ModelSpec, head_size: int) -> dict[str, Any]:
    """The activation, and the further keys of a model with windows or capped scores in some layers."""
    kind = model_type_of(spec)
    if kind == "gpt_oss":  # which stretches positions unless it is told not to
        return {"hidden_act": "silu", "rope_parameters": _rope(spec), **_layer_types(spec)}
    if kind == "gpt2":
        return {"activation_function": "gelu_new"}
    if kind not in ("gemma", "gemma2", "gemma3_text"):
        return {"hidden_act": "silu"}
    gelu = "gelu_pytorch_tanh"
    if kind == "gemma":
        return {"hidden_act": gelu, "hidden_activation": gelu}
    scalar = spec.query_pre_attn_scalar or head_size
    keys = {
        "hidden_activation": gelu,
        "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
        **_layer_types(spec),
    }
    if kind == "gemma2":
        return keys | {"attn_logit_softcapping": spec.scores_cap, "final_logit_softcapping": spec.logits_cap}
    local = {"rope_type": "default", "rope_theta": ROTARY_BASE}
    rope = {"full_attention": _rope(spec), "sliding_attention": local}
    return keys | {"rope_local_base_freq": ROTARY_BASE, "rope_parameters": rope}


def _layer_types(spec: ModelSpec) -> dict[str, Any]:
    kinds = ["sliding_attention" if spec.has_window(layer) else "full_attention" for layer in range(spec.num_layers)]
    window = spec.attention_window
    return {"layer_types": kinds, "sliding_window": spec.seq_length if window is None else window.size}


def _latent_keys(spec: ModelSpec) -> dict[str, Any]:
    """The keys of a DeepSeek-V3 alone, with the nearest values that it can have."""
    latent, experts = spec.latent_attention, spec.experts
    assert latent is not None
    assert experts is not None
    return {
        "head_dim": latent.rotary_head_size,  # the part of a head that positions turn
        "rms_norm_eps": SHORT_NORM_EPSILON,
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.key_value_rank,
        "qk_rope_head_dim": latent.rotary_head_size,
        "qk_nope_head_dim": spec.query_size // spec.num_attention_heads - latent.rotary_head_size,
        "v_head_dim": latent.value_head_size,
        "rope_interleave": True,
        "n_shared_experts": max(experts.shared_ffn_hidden_size // experts.ffn_hidden_size, 1),
        "first_k_dense_replace": experts.num_dense_layers,
        "moe_layer_freq": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": experts.routed_scale,
        "n_group": min(experts.num_groups, experts.num_experts // 2),  # as two experts speak for a group
        "topk_group": experts.top_groups,
        "num_nextn_predict_layers": 0,
    }
