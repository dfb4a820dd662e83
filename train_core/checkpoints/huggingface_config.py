"""The facts of a model in the config.json beside its weights that shapes of tensors do not show. No torch.

The file is read as `model_from` reads it, and must come to the model that is trained. Whatever else would make the
weights compute something else than they were trained for is refused by the name of its key; what differs and is still
taken is said.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from conf.compose.model_from import HuggingFaceConfig, Shape, shape_of
from conf.errors import ConfigError
from conf.overrides import for_a_shell
from conf.plan.experiment import Experiment
from conf.types.model_spec import ModelSpec, Part
from conf.types.schema import ROTARY_BASE, Family
from train_core.checkpoints.checkpoint_folder import KEY
from train_core.checkpoints.weight_files import is_weights, left_aside

LOGGER = logging.getLogger(__name__)


MISTRAL, QWEN2, QWEN3, MIXTRAL = "mistral", "qwen2", "qwen3", "mixtral"
QWEN3_MOE, DEEPSEEK_V3, GEMMA, GEMMA2 = "qwen3_moe", "deepseek_v3", "gemma", "gemma2"
GPT_OSS, OLMO2 = "gpt_oss", "olmo2"
FAMILIES = ("gpt2", "llama", MISTRAL, QWEN2, QWEN3, MIXTRAL, QWEN3_MOE, DEEPSEEK_V3, GEMMA, GEMMA2, GPT_OSS, OLMO2)
"""The types of models whose weights have a layout here; a Mistral is a Llama with a window."""

PARTS_OF: dict[str, frozenset[Part]] = {
    GEMMA: frozenset(("gelu", "scaled_embedding")),
    GEMMA2: frozenset(("gelu", "scaled_embedding", "post_norms")),
    OLMO2: frozenset(("norms_behind", "wide_qk_norm")),
    GPT_OSS: frozenset(("sinks", "output_bias", "mlp_bias", "router_bias", "capped_activation")),
}
"""The parts that all models of a type have, and none of another."""

COMPARED = (
    *("family", "qkv_bias", "qk_norm", "latent_attention", "num_attention_heads", "num_query_groups"),
    *("tied_embeddings", "norm_epsilon", "rotary_base", "rotary_scaling"),
    *("logits_cap", "scores_cap", "query_pre_attn_scalar"),
)
"""Keys of the model that the shapes of tensors do not tell: 4 heads of 8 are as wide as 2 of 16."""

COMPARED_OF_EXPERTS = ("num_experts", "top_k", "scores", "routed_scale", "num_groups", "top_groups")


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
        "attention_bias": Fixed((False,), "attention without biases"),
        "mlp_bias": Fixed((False,), "feed-forward layers without biases"),
        "partial_rotary_factor": Fixed((1.0,), "positions that turn whole heads"),
        "norm_topk_prob": Fixed((True,), "weights of a token's experts that add up to one"),
        "scoring_func": Fixed(("sigmoid",), "sigmoid scores of such a model's experts"),
        "topk_method": Fixed(("noaux_tc",), "groups of experts as good as their two best"),
        "rope_interleave": Fixed((True,), "positions that turn neighbours of such a model's heads together"),
    },
}


def model_type_of(spec: ModelSpec) -> str:
    """Hugging Face's type of such a model."""
    if spec.family == "gpt":
        return "gpt2"
    if (kind := next((kind for kind, parts in PARTS_OF.items() if parts == {*spec.parts}), None)) is not None:
        return kind
    if spec.latent_attention is not None:
        return DEEPSEEK_V3
    if spec.experts is not None:
        return QWEN3_MOE if spec.qk_norm else MIXTRAL
    plain = "llama" if spec.narrow_window is None else MISTRAL
    return QWEN3 if spec.qk_norm else QWEN2 if spec.qkv_bias else plain


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
    if kind not in FAMILIES:
        remedy = "Use weights of one of these, or checkpoint.load=null for random ones."
        raise _other_model(config, "model_type", kind, f"{', '.join(FAMILIES)} alone", remedy)
    if quantization := config.mapping("quantization_config"):
        remedy = "Use the weights that were not quantized, or convert these to bf16."
        method = quantization.get("quant_method")
        raise _other_model(config, "quantization_config.quant_method", method, "with whole weights alone", remedy)


def _require_same(shape: Shape, spec: ModelSpec, path: Path) -> None:
    """The keys of the model must be those that the file comes to."""
    ours = spec.model_dump()
    ours["rotary_base"] = spec.rotary_base or (ROTARY_BASE if spec.family == "llama" else None)
    for key in COMPARED:
        _require_equal(f"model.{key}", ours[key], shape.get(key), path)
    _require_equal("model.parts", sorted(spec.parts), sorted(shape["parts"]), path)
    # A window that sequences fit into computes nothing else than none.
    window = shape.get("attention_window")
    window = window if window is not None and window["size"] < spec.seq_length else None
    _require_equal("model.attention_window", ours["attention_window"] if spec.narrow_window else None, window, path)
    there, here = shape["experts"], ours["experts"]
    if there is None or here is None:
        _require_equal("model.experts", here, there, path)
        return
    for key in COMPARED_OF_EXPERTS:
        # A file that does not name a key of routing is of a type that has none: plain softmax without groups.
        if key in there:
            _require_equal(f"model.experts.{key}", here[key], there[key], path)


def _require_equal(key: str, ours: object, theirs: object, path: Path) -> None:
    if ours != theirs:
        problem = f"is not the {json.dumps(theirs)} that {path} comes to"
        raise ConfigError(key, ours, problem, f"Use {for_a_shell(key, theirs)}, or other weights.")


def _require_computed_here(config: HuggingFaceConfig, spec: ModelSpec) -> None:
    """What no key of the model says must be as this trainer computes it."""
    for key, fixed in FIXED[spec.family].items():
        value = config.content.get(key, config.rotary.content.get(key))
        is_part = key.endswith("_bias") and model_type_of(spec) == GPT_OSS  # which has biases everywhere
        if value is not None and value not in fixed.values and not is_part:
            remedy = f"Use weights with {key} = {json.dumps(fixed.values[0])}, or checkpoint.load=null for random ones."
            raise _other_model(config, key, value, fixed.computes, remedy)
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
    if (window := config.window) is not None and window >= spec.seq_length:
        found.append(f"sliding_window = {window}; sequences here fit into it, and an export does not have it")
    return found
