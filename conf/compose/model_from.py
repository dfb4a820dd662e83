"""The shape of a model from a Hugging Face `config.json`: for `model_from=PATH`, and to hold weights against a model.

What a `ModelSpec` cannot hold is refused by the name of its key; biases other than those of queries, keys and
values in Qwen2 and gpt-oss, rotary stretching other than llama3's, and gpt-oss's sinks and capped activation are left
out, as in the package's own files: weights that need them are refused where they are loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.errors import ConfigError
from conf.folders import at_home
from conf.overrides import Override, Overrides, override_text
from conf.types.schema import NORM_EPSILON, ROTARY_BASE

KEY = "model_from"
NAME_A_FILE = "Name a Hugging Face config.json, or the folder that holds it."
MOST_TOKENS = 8192
"""Sequences are no longer than this unless model.seq_length says so: positions go far beyond those of pretraining."""

ABSENT: dict[object, dict[str, Any]] = {
    "llama": {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    "mistral": {"num_key_value_heads": 8, "rms_norm_eps": 1e-6, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8, "rope_theta": 1e6},
    "gpt_oss": {
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "rope_theta": 150_000.0,
        "rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 4096},
    },
    "qwen2": {"num_key_value_heads": 32, "rms_norm_eps": 1e-6},
    "qwen3": {"num_key_value_heads": 32, "rms_norm_eps": 1e-6, "head_dim": 128},
    "qwen3_moe": {"num_key_value_heads": 4, "rms_norm_eps": 1e-6, "norm_topk_prob": False},
    "deepseek_v2": {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "q_lora_rank": 1536, "n_shared_experts": 2},
    "deepseek_v3": {
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "q_lora_rank": 1536,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "routed_scaling_factor": 2.5,
        "n_group": 8,
        "topk_group": 4,
    },
}
"""What the file of a type means that does not name a key, where that is no key's own default below.

Source: the configurations of these types in transformers 5.23.
"""

LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
Shape = dict[str, Any]


def expand_model_from(texts: Iterable[str]) -> Overrides:
    """Put the values of a model's file in the place of `model_from=PATH`, and return all overrides.

    They are expanded before anything else, so that records and jobs do not depend on the file any more.

    Raises:
        ConfigError: the file cannot be read, or says what is not understood; or a model was chosen beside it.
    """
    overrides = Overrides.parse(texts)
    if not (named := overrides.of({KEY}).entries):
        return overrides
    if beside := next((override for override in overrides if override.key == "model"), None):
        remedy = f"Give one of them; single values may follow, such as {KEY}=config.json model.seq_length=4096."
        raise ConfigError("model", beside.value, f"was chosen beside {KEY}", remedy)
    if not (path := named[-1].value):  # else it would be the config.json of the current folder
        raise ConfigError(KEY, "", "names no file", NAME_A_FILE)
    word = override_text(KEY, path)
    values = [override_text(f"model.{key}", value) for key, value in model_in(at_home(path, KEY)).items()]
    # The file's values come first, so that single values of the command line correct them.
    return Overrides(tuple(replace(Override.parse(each), word=word) for each in values)) + overrides.without({KEY})


def model_in(path: Path) -> Shape:
    """The keys of group `model` that a config.json, or the folder that holds one, comes to.

    Raises:
        ConfigError: it cannot be read, or says what is not understood.
    """
    config = HuggingFaceConfig.read(path / "config.json" if path.is_dir() else path, KEY)
    return {"name": _name(config.path), **shape_of(config)}


class HuggingFaceConfig:
    """The keys of one file. A key that is absent has the default of its type, and one that is null that of the key.

    Attributes:
        asked_by: the dotted key that names the file, for errors.
    """

    def __init__(self, path: Path, content: dict[str, Any], asked_by: str) -> None:
        self.path, self.content, self.asked_by = path, content, asked_by

    @classmethod
    def read(cls, path: Path, asked_by: str) -> HuggingFaceConfig:
        """Raises ConfigError where the file cannot be read, or is not JSON."""
        try:
            content = json.loads(path.read_bytes())
        except OSError as error:
            raise ConfigError(asked_by, str(path), f"cannot be read ({error.strerror})", NAME_A_FILE) from None
        except ValueError as error:
            raise ConfigError(asked_by, str(path), f"is not JSON ({error})", "Give it Hugging Face's form.") from None
        named = content if isinstance(content, dict) else {}
        kind = named.get("model_type")
        return cls(path, (ABSENT.get(kind, {}) if isinstance(kind, str) else {}) | named, asked_by)

    @property
    def rotary(self) -> HuggingFaceConfig:
        """The keys of rotary positions, which older files call otherwise."""
        found = self.mapping("rope_parameters") or self.mapping("rope_scaling")
        return HuggingFaceConfig(self.path, found, self.asked_by)

    @property
    def rotary_type(self) -> str | None:
        return self.rotary.text("rope_type") or self.rotary.text("type")

    @property
    def window(self) -> int | None:
        """The tokens that attention looks back; None where it sees all of them."""
        if self.text("model_type") in ("qwen2", "qwen3", "qwen3_moe"):  # whose files name one that they do not use
            return None
        return None if self.content.get("sliding_window") is None else self.count("sliding_window")

    def not_understood(self, key: str, remedy: str) -> ConfigError:
        value = self.content.get(key)
        problem = f"names {key} = {json.dumps(value)[:80]}, which is not understood"
        return ConfigError(self.asked_by, str(self.path), f"does not name {key}" if value is None else problem, remedy)

    def text(self, key: str) -> str | None:
        value = self.content.get(key)
        return value if isinstance(value, str) else None

    def count(self, key: str, default: int | None = None) -> int:
        value = self.content.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.not_understood(key, "Give a whole number, which is not negative.")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.content.get(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.not_understood(key, "Give a number.")
        return float(value)

    def truth(self, key: str, default: bool) -> bool:
        value = self.content.get(key)
        return value if isinstance(value, bool) else default

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.content.get(key) or {}
        if not isinstance(value, dict):
            raise self.not_understood(key, "Give a mapping.")
        return value

    def require(self, key: str, *values: object) -> None:
        """Refuse a value of a key that would make another model of it; a key that is absent is taken for the first."""
        if self.content.get(key, values[0]) not in values:
            values_in_words = " or ".join(json.dumps(value) for value in values)
            raise self.not_understood(key, f"Known: {values_in_words}.")


def shape_of(config: HuggingFaceConfig) -> Shape:
    """The keys of group `model`, but for its name.

    Raises:
        ConfigError: the file says what is not understood.
    """
    kind = config.text("model_type")
    if kind not in READERS:
        raise config.not_understood("model_type", f"Known: {', '.join(READERS)}.")
    return READERS[kind](config)


def _gpt2(config: HuggingFaceConfig) -> Shape:
    config.require("activation_function", "gelu_new", "gelu", "gelu_fast", "gelu_pytorch_tanh")
    config.require("add_cross_attention", False)
    hidden, heads = config.count("n_embd"), config.count("n_head")
    return {
        "family": "gpt",
        "num_layers": config.count("n_layer"),
        "hidden_size": hidden,
        "ffn_hidden_size": config.count("n_inner", 4 * hidden),
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "head_size": None,
        "rotary_base": None,
        "rotary_scaling": None,
        "norm_epsilon": config.number("layer_norm_epsilon", NORM_EPSILON),
        "qkv_bias": False,
        "qk_norm": False,
        "gated_mlp": False,
        "tied_embeddings": config.truth("tie_word_embeddings", True),
        "vocab_size": config.count("vocab_size"),
        "seq_length": config.count("n_positions", config.count("n_ctx", 1024)),
        "experts": None,
        "latent_attention": None,
    }


def _llama(config: HuggingFaceConfig) -> Shape:
    config.require("hidden_act", "silu", "swish")
    rotary = config.rotary
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    head = config.count("head_dim", 0)
    scaling = {name: rotary.content.get(name) for name in LLAMA3} if config.rotary_type == "llama3" else None
    tokens = config.count("max_position_embeddings", MOST_TOKENS)
    trained = rotary.count("original_max_position_embeddings", 0) or tokens
    return {
        "family": "llama",
        "num_layers": config.count("num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": config.count("intermediate_size"),
        "num_attention_heads": heads,
        "num_query_groups": config.count("num_key_value_heads", heads),
        "head_size": head if head and head * heads != hidden else None,
        "rotary_base": rotary.number("rope_theta", 0.0) or config.number("rope_theta", ROTARY_BASE),
        "rotary_scaling": scaling,
        "norm_epsilon": config.number("rms_norm_eps", NORM_EPSILON),
        "qkv_bias": config.text("model_type") == "qwen2",
        "qk_norm": False,
        "gated_mlp": True,
        "tied_embeddings": config.truth("tie_word_embeddings", False),
        "vocab_size": config.count("vocab_size"),
        "seq_length": min(tokens, trained, MOST_TOKENS),
        "experts": None,
        "latent_attention": None,
    }


def _mistral(config: HuggingFaceConfig) -> Shape:
    """A Llama whose attention looks back so far; sequences that fit into that window are computed alike."""
    shape = _llama(config)
    return shape if config.window is None else {**shape, "seq_length": min(shape["seq_length"], config.window)}


def _mixtral(config: HuggingFaceConfig) -> Shape:
    shape = _llama(config)
    experts = _experts(
        config.count("num_local_experts"), config.count("num_experts_per_tok"), config.count("intermediate_size")
    )
    return {**shape, "experts": experts}


def _gpt_oss(config: HuggingFaceConfig) -> Shape:
    """A Mixtral with a window in every second layer, and with biases of queries, keys and values."""
    shape, by_turns = _mixtral(config), ["sliding_attention", "full_attention"]
    types, layers = config.content.get("layer_types"), shape["num_layers"]
    # The length is compared first, as a list of as many layers as the file names may not fit into memory.
    is_list = isinstance(types, list) and len(types) == layers
    if types is not None and not (is_list and types == (by_turns * layers)[:layers]):
        raise config.not_understood("layer_types", f"Known: {' and '.join(by_turns)} by turns.")
    window = {"size": config.count("sliding_window"), "full_every": 2}
    return {**shape, "qkv_bias": config.truth("attention_bias", True), "attention_window": window}


def _qwen(config: HuggingFaceConfig) -> Shape:
    config.require("use_sliding_window", False)
    return _llama(config)


def _qwen3(config: HuggingFaceConfig) -> Shape:
    return {**_qwen(config), "qk_norm": True}


def _qwen3_moe(config: HuggingFaceConfig) -> Shape:
    config.require("mlp_only_layers", [], None)
    config.require("decoder_sparse_step", 1)
    config.require("norm_topk_prob", True)
    # Newer files have Mixtral's name for the number.
    number = config.count("num_local_experts" if config.content.get("num_experts") is None else "num_experts")
    experts = _experts(number, config.count("num_experts_per_tok"), config.count("moe_intermediate_size"))
    return {**_qwen3(config), "experts": experts}


def _deepseek(config: HuggingFaceConfig) -> Shape:
    config.require("moe_layer_freq", 1)
    rotary, width = config.count("qk_rope_head_dim"), config.count("moe_intermediate_size")
    latent = {
        "query_rank": config.count("q_lora_rank", 0) or None,
        "key_value_rank": config.count("kv_lora_rank"),
        "rotary_head_size": rotary,
        "value_head_size": config.count("v_head_dim"),
    }
    experts = _experts(
        config.count("n_routed_experts"),
        config.count("num_experts_per_tok"),
        width,
        shared=width * config.count("n_shared_experts", 0),
        dense=config.count("first_k_dense_replace", 0),
    )
    head = config.count("qk_nope_head_dim") + rotary
    return {**_llama(config), "head_size": head, "experts": experts, "latent_attention": latent}


def _deepseek_v3(config: HuggingFaceConfig) -> Shape:
    """With the routing of its own: sigmoids, the best groups of experts, and a factor of what these put out."""
    config.require("norm_topk_prob", True)
    shape = _deepseek(config)
    routing = {
        "scores": "sigmoid",
        "routed_scale": config.number("routed_scaling_factor", 1.0),
        "num_groups": config.count("n_group"),
        "top_groups": config.count("topk_group"),
    }
    return {**shape, "experts": {**shape["experts"], **routing}}


def _experts(number: int, top_k: int, width: int, shared: int = 0, dense: int = 0) -> Shape:
    return {
        "num_experts": number,
        "top_k": top_k,
        "ffn_hidden_size": width,
        "shared_ffn_hidden_size": shared,
        "num_dense_layers": dense,
        "capacity_factor": None,
        "imbalance": 1.0,
    }


READERS: dict[str, Callable[[HuggingFaceConfig], Shape]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "gpt_oss": _gpt_oss,
    "qwen2": _qwen,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek_v3,
}
"""The functions that read the keys of each type of model."""


def _name(path: Path) -> str:
    """The folder's name, or the file's own where that says more, as a name for people."""
    name = path.absolute().parent.name if path.stem == "config" else path.stem
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.") or "model"
