"""The facts of a model in the config.json beside its weights that shapes of tensors do not show. No torch.

Whatever would compute something else than the weights were trained for is refused by the name of its key; what differs
and is still taken is said.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from conf.compose.model_from import DEEPSEEK_V3 as DEEPSEEK_V3_DEFAULTS
from conf.errors import ConfigError
from conf.overrides import for_a_shell
from conf.types.model_spec import ModelSpec, RotaryScaling
from conf.types.schema import ROTARY_BASE, DataSpec, Family
from train_core.checkpoints.checkpoint_folder import KEY

LOGGER = logging.getLogger(__name__)


class RopeParameters(BaseModel):
    """The speed of rotary positions: `rope_parameters`, or `rope_scaling` in older files, with its type as `type`."""

    model_config = ConfigDict(strict=True)

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None


class HuggingFaceConfig(BaseModel):
    """The keys that are looked at, of both families; None where the file does not say."""

    model_config = ConfigDict(strict=True)

    model_type: str | None = None
    quantization_config: dict[str, Any] | None = None
    vocab_size: int | None = None
    n_head: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    num_local_experts: int | None = None
    num_experts: int | None = None
    n_routed_experts: int | None = None
    num_experts_per_tok: int | None = None
    routed_scaling_factor: float | None = None
    n_group: int | None = None
    topk_group: int | None = None
    scoring_func: str | None = None
    topk_method: str | None = None
    moe_layer_freq: int | None = None
    rope_interleave: bool | None = None
    tie_word_embeddings: bool | None = None
    layer_norm_epsilon: float | None = None
    rms_norm_eps: float | None = None
    activation_function: str | None = None
    scale_attn_weights: bool | None = None
    scale_attn_by_inverse_layer_idx: bool | None = None
    reorder_and_upcast_attn: bool | None = None
    hidden_act: str | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    norm_topk_prob: bool | None = None
    mlp_only_layers: list[int] | None = None
    decoder_sparse_step: int | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    partial_rotary_factor: float | None = None
    rope_theta: float | None = None
    rope_parameters: RopeParameters | None = None
    rope_scaling: RopeParameters | None = None


QWEN2, QWEN3, MIXTRAL, QWEN3_MOE, DEEPSEEK_V3 = "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3"
LLAMAS = ("llama", "mistral", QWEN2, QWEN3, MIXTRAL, QWEN3_MOE, DEEPSEEK_V3)
WITH_EXPERTS = (MIXTRAL, QWEN3_MOE, DEEPSEEK_V3)
FAMILIES: dict[str, Family] = {"gpt2": "gpt", **dict.fromkeys(LLAMAS, "llama")}
"""The types of models that are computed as a family here; a Mistral is a Llama with a window, a Qwen2 one with biases
of queries, keys and values, a Qwen3 one with norms of queries and keys; a Mixtral, a Qwen3-MoE and a DeepSeek-V3 have
experts, the last with latent attention."""

WITH: dict[str, tuple[str, ...]] = {"qkv_bias": (QWEN2,), "qk_norm": (QWEN3, QWEN3_MOE)}
"""The types of Llamas that have what a key says, which the others have not."""

MISTRAL_WINDOW = 4096
"""The window of a Mistral whose file names none. Source: transformers, MistralConfig."""


class Fixed(NamedTuple):
    """A fixed choice of this trainer, whatever a file says, and the values of the key that mean the same."""

    values: tuple[object, ...]
    computes: str


FIXED: dict[Family, dict[str, Fixed]] = {
    "gpt": {
        "activation_function": Fixed(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "GELU in its tanh form"),
        "scale_attn_weights": Fixed((True,), "scores divided by the square root of the head size"),
        "scale_attn_by_inverse_layer_idx": Fixed((False,), "scores of the same scale in every layer"),
    },
    "llama": {
        "hidden_act": Fixed(("silu", "swish"), "SiLU"),
        "attention_bias": Fixed((False,), "attention without biases"),
        "mlp_bias": Fixed((False,), "feed-forward layers without biases"),
        "partial_rotary_factor": Fixed((1.0,), "positions that turn whole heads"),
        "norm_topk_prob": Fixed((True,), "weights of a token's experts that add up to one"),
        "mlp_only_layers": Fixed(([],), "experts in every layer"),
        "decoder_sparse_step": Fixed((1,), "experts in every layer"),
        "moe_layer_freq": Fixed((1,), "experts in every layer but the first ones"),
        "scoring_func": Fixed(("sigmoid",), "sigmoid scores of such a model's experts"),
        "topk_method": Fixed(("noaux_tc",), "groups of experts as good as their two best"),
        "rope_interleave": Fixed((True,), "positions that turn neighbours of such a model's heads together"),
    },
}


def is_weights(path: str | None) -> bool:
    """True if `checkpoint.load` names Hugging Face weights: a file of them or a folder with such files."""
    if path is None:
        return False
    found = Path(path).expanduser()
    return (found.suffix == ".safetensors" and found.is_file()) or any(found.glob("*.safetensors"))


def model_type_of(spec: ModelSpec) -> str:
    """Hugging Face's type of such a model."""
    if spec.family == "gpt":
        return "gpt2"
    if spec.latent_attention is not None:
        return DEEPSEEK_V3
    if spec.experts is not None:
        return QWEN3_MOE if spec.qk_norm else MIXTRAL
    return QWEN3 if spec.qk_norm else QWEN2 if spec.qkv_bias else "llama"


def require_config(weights: Path, spec: ModelSpec) -> None:
    """Check that a config.json beside the weights means this model; nothing has to lie there.

    Raises:
        ConfigError: it means something else, or cannot be read.
    """
    if (path := _config_beside(weights)).exists():
        config = _read(path)
        _require_architecture(config, path, spec)
        _require_heads(config, path, spec)
        _require_experts(config, path, spec)
        _require_epsilon(config, path, spec)
        _require_positions(config, path, spec)


def warn_of_differences(path: str | None, spec: ModelSpec) -> None:
    """Log what differs between weights that `checkpoint.load` may name and the model that takes them nevertheless.

    Raises:
        ConfigError: see `require_config`.
    """
    if path is None or not is_weights(path):
        return
    weights = Path(path).expanduser()
    require_config(weights, spec)
    if (beside := _config_beside(weights)).exists():
        for difference in _differences(_read(beside), spec):
            LOGGER.warning("%s names %s", beside, difference)


def warn_of_other_ids(path: str | None, data: DataSpec, tokenizer: Callable[[], str | None]) -> None:
    """Log where the ids of a text are not those of the tokenizer beside the weights that `checkpoint.load` may name.

    Args:
        tokenizer: gives the content of the `tokenizer.json` of the text; None where none is read.
    """
    if path is None or not is_weights(path) or (own := tokenizer()) is None:
        return
    beside = _beside(Path(path).expanduser(), "tokenizer.json")
    if not beside.exists() or beside.read_text() != own:
        LOGGER.warning(
            "checkpoint.load = %s: the ids of its tokenizer mean other text than those of data.tokenizer = %s; to keep"
            " them, make an indexed dataset with its tokenizer, for data=megatron",
            path,
            data.tokenizer,
        )


def _config_beside(weights: Path) -> Path:
    return _beside(weights, "config.json")


def _beside(weights: Path, name: str) -> Path:
    return (weights if weights.is_dir() else weights.parent) / name


def _read(path: Path) -> HuggingFaceConfig:
    try:
        config = HuggingFaceConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, f"config.json cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _unreadable(path, f"config.json: {f'{where}: ' if where else ''}{first['msg']}") from None
    if config.model_type == "mistral" and "sliding_window" not in config.model_fields_set:
        config.sliding_window = MISTRAL_WINDOW
    if config.model_type in (QWEN2, QWEN3, QWEN3_MOE) and not config.use_sliding_window:
        config.sliding_window = None  # its files name one all the same
    if config.model_type == QWEN3_MOE and config.norm_topk_prob is None:
        config.norm_topk_prob = False  # what transformers' Qwen3MoeConfig means by a file that does not say
    if config.model_type == DEEPSEEK_V3:
        for key, default in DEEPSEEK_V3_DEFAULTS.items():
            if getattr(config, key) is None:
                setattr(config, key, default)
    return config


def _unreadable(path: Path, problem: str) -> ConfigError:
    return ConfigError(KEY, str(path.parent), problem, "Correct that file, or move it away.")


def _other_model(path: Path, key: str, value: object, computes: str, remedy: str) -> ConfigError:
    problem = f"config.json names {key} = {json.dumps(value)}, and this trainer computes {computes}"
    return ConfigError(KEY, str(path.parent), problem, remedy)


def _require_architecture(config: HuggingFaceConfig, path: Path, spec: ModelSpec) -> None:
    """Its layers must compute what the layers of the family compute here."""
    kind = config.model_type
    if kind is not None and kind not in FAMILIES:
        remedy = "Use weights of one of these, or checkpoint.load=null for random ones."
        raise _other_model(path, "model_type", kind, f"{', '.join(FAMILIES)} alone", remedy)
    if kind is not None and (family := FAMILIES[kind]) != spec.family:
        problem = f'is not that of {path}, which names model_type = "{kind}"'
        raise ConfigError("model.family", spec.family, problem, f"Use model.family={family}, or other weights.")
    for name, types in WITH.items() if kind is not None and spec.family == "llama" else ():
        if (has := kind in types) != getattr(spec, name):
            problem, remedy = f'is not that of {path}, which names model_type = "{kind}"', f"{name}={str(has).lower()}"
            raise ConfigError(f"model.{name}", not has, problem, f"Use model.{remedy}, or other weights.")
    if kind is not None and (is_latent := kind == DEEPSEEK_V3) != (spec.latent_attention is not None):
        problem = f'is not that of {path}, which names model_type = "{kind}"'
        remedy = "Use a model with latent attention, or other weights." if is_latent else "Use other weights."
        raise ConfigError("model.latent_attention", "null" if is_latent else "given", problem, remedy)
    if kind is not None and (has_experts := kind in WITH_EXPERTS) != (spec.experts is not None):
        problem = f'is not that of {path}, which names model_type = "{kind}"'
        remedy = "Use a model with experts, or other weights." if has_experts else "Use model.experts=null."
        raise ConfigError("model.experts", "null" if has_experts else "given", problem, remedy)
    if config.quantization_config is not None:
        remedy = "Use the weights that were not quantized, or convert these to bf16."
        method = config.quantization_config.get("quant_method")
        raise _other_model(path, "quantization_config.quant_method", method, "with whole weights alone", remedy)
    for key, fixed in FIXED[spec.family].items():
        if (value := getattr(config, key)) is not None and value not in fixed.values:
            remedy = f"Use weights with {key} = {json.dumps(fixed.values[0])}, or checkpoint.load=null for random ones."
            raise _other_model(path, key, value, fixed.computes, remedy)
    if (window := config.sliding_window) is not None and window < spec.seq_length:
        computes = f"attention to all of the model.seq_length = {spec.seq_length} tokens"
        raise _other_model(path, "sliding_window", window, computes, f"Use model.seq_length={window} or less.")


def _require_heads(config: HuggingFaceConfig, path: Path, spec: ModelSpec) -> None:
    """Heads must be the same, which the shapes of tensors do not tell: 4 heads of 8 are as wide as 2 of 16."""
    keys = {
        "num_attention_heads": "n_head" if spec.family == "gpt" else "num_attention_heads",
        "num_query_groups": "num_key_value_heads",
        "tied_embeddings": "tie_word_embeddings",
    }
    for ours, theirs in keys.items():
        value, there = getattr(spec, ours), getattr(config, theirs)
        if there is not None and there != value:
            problem = f"is not the {str(there).lower()} that {path} names as {theirs}"
            raise ConfigError(f"model.{ours}", value, problem, f"Use model.{ours}={str(there).lower()}.")


def _require_experts(config: HuggingFaceConfig, path: Path, spec: ModelSpec) -> None:
    """Tokens must pass through as many experts, which no shape tells."""
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    number = next((name for name in names if getattr(config, name) is not None), names[-1])
    routing = {"routed_scale": "routed_scaling_factor", "num_groups": "n_group", "top_groups": "topk_group"}
    for ours, theirs in {"num_experts": number, "top_k": "num_experts_per_tok", **routing}.items():
        value, there = getattr(spec.experts, ours, None), getattr(config, theirs)
        if value is not None and there is not None and there != value:
            problem = f"is not the {there} that {path} names as {theirs}"
            raise ConfigError(f"model.experts.{ours}", value, problem, f"Use model.experts.{ours}={there}.")


def _require_epsilon(config: HuggingFaceConfig, path: Path, spec: ModelSpec) -> None:
    name = "layer_norm_epsilon" if spec.family == "gpt" else "rms_norm_eps"
    if (epsilon := getattr(config, name)) is not None and epsilon != spec.norm_epsilon:
        problem = f"is not the {epsilon:g} that {path} names as {name}"
        raise ConfigError("model.norm_epsilon", spec.norm_epsilon, problem, f"Use model.norm_epsilon={epsilon}.")


def _require_positions(config: HuggingFaceConfig, path: Path, spec: ModelSpec) -> None:
    """Rotary positions must turn as fast; learned ones are tensors."""
    if spec.family == "gpt":
        return
    rotary = config.rope_parameters or config.rope_scaling or RopeParameters()
    # Newer files have it among `rope_parameters`, and older ones beside the other keys.
    base, ours = config.rope_theta or rotary.rope_theta or ROTARY_BASE, spec.rotary_base or ROTARY_BASE
    if base != ours:
        problem = f"is not the {base:g} that {path} names as rope_theta"
        raise ConfigError("model.rotary_base", ours, problem, f"Use model.rotary_base={float(base)}.")
    if (part := rotary.partial_rotary_factor) not in (None, 1.0):
        remedy = "Use weights of a model whose heads turn whole, or checkpoint.load=null for random ones."
        raise _other_model(path, "partial_rotary_factor", part, "positions that turn whole heads", remedy)
    scaling = _scaling(rotary, path)
    if scaling != spec.rotary_scaling:
        given = None if spec.rotary_scaling is None else spec.rotary_scaling.model_dump()
        problem = f"is not how {path} stretches rotary positions"
        wanted = for_a_shell("model.rotary_scaling", None if scaling is None else scaling.model_dump())
        raise ConfigError("model.rotary_scaling", given, problem, f"Use {wanted}.")


def _scaling(rotary: RopeParameters, path: Path) -> RotaryScaling | None:
    kind = rotary.rope_type or rotary.type or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        remedy = "Use weights of a model with one of these, or checkpoint.load=null for random ones."
        raise _other_model(path, "rope_type", kind, "rotary positions of the types default and llama3 alone", remedy)
    values = {name: getattr(rotary, name) for name in RotaryScaling.model_fields}
    if lacking := [name for name, value in values.items() if value is None]:
        raise _unreadable(path, f"config.json scales rotary positions as llama3 without {', '.join(lacking)}")
    try:
        return RotaryScaling(**values)
    except (ValidationError, ConfigError) as error:
        raise _unreadable(path, f"config.json scales rotary positions as llama3 with {values}: {error}") from None


def _differences(config: HuggingFaceConfig, spec: ModelSpec) -> list[str]:
    """The values of a file that are taken although they differ, in words that follow `names`."""
    found = []
    if (rows := config.vocab_size) is not None and rows < spec.vocab_size:
        found.append(
            f"vocab_size = {rows}, and model.vocab_size = {spec.vocab_size}; the {spec.vocab_size - rows} rows beyond"
            " start as the mean of the others, and an export keeps them"
        )
    if config.reorder_and_upcast_attn:
        found.append("reorder_and_upcast_attn = true; this trainer computes scores in precision.dtype")
    if (window := config.sliding_window) is not None:
        found.append(f"sliding_window = {window}; sequences here fit into it, and an export does not have it")
    return found
