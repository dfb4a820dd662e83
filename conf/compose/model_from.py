"""The shape of a model from a Hugging Face `config.json`: for `model_from=PATH`, and to hold weights against a model.

Every key is read, known to change nothing, told in `ModelSpec.left_out`, or refused by its name: `model_types.yaml`
says which, for each type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from conf.compose.model_types import OF_A_FIELD, ModelType, all_keys, model_types
from conf.errors import ConfigError
from conf.folders import at_home
from conf.overrides import Override, Overrides, override_text
from conf.types.model_spec import RotaryScaling, Scores, yarn_scale
from conf.types.schema import NORM_EPSILON, ROTARY_BASE

KEY = "model_from"
NAME_A_FILE = "Name a Hugging Face config.json, or the folder that holds it."
MOST_TOKENS = 8192
"""Sequences are no longer than this unless model.seq_length says so: positions go far beyond those of pretraining."""

FULL = "full_attention"
STRETCHED = ("linear", "dynamic", "longrope", "su")
"""Kinds of rotary positions that are stretched in ways that a model here does not hold."""

LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
PARTIAL = "partial_rotary_factor"
ROTARY = frozenset(
    {"rope_type", "type", "rope_theta", *LLAMA3, "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
    | {"attention_factor", "short_factor", "long_factor", "short_mscale", "long_mscale"}
    | {"finetuned", "attn_factor", "max_position_embeddings", "llama_4_scaling_beta", "alpha"}
)
"""The keys of rotary positions in transformers' modeling_rope_utils.py, and those in published files."""

Shape = dict[str, Any]


def expand_model_from(texts: Iterable[str]) -> Overrides:
    """Put the values of a model's file in the place of `model_from=PATH`, and return all overrides.

    They are expanded before anything else, so that records and jobs do not depend on the file any more. Raises
    ConfigError where the file cannot be read, or says what is not understood; or a model was chosen beside it.
    """
    overrides = Overrides.parse(texts)
    if not (named := overrides.of({KEY}).entries):
        return overrides
    if beside := next((override for override in overrides if override.key == "model"), None):
        remedy = f"Give one of the two; single values may follow, as in {KEY}=config.json model.seq_length=4096."
        raise ConfigError("model", beside.value, f"was given together with {KEY}", remedy)
    if not (path := named[-1].value):  # else it would be the config.json of the current folder
        raise ConfigError(KEY, "", "names no file", NAME_A_FILE)
    word = override_text(KEY, path)
    values = [override_text(f"model.{key}", value) for key, value in model_in(at_home(path, KEY)).items()]
    # The file's values come first, so that single values of the command line correct them.
    return Overrides(tuple(replace(Override.parse(each), word=word) for each in values)) + overrides.without({KEY})


def model_in(path: Path) -> Shape:
    """The keys of group `model` that a config.json, or the folder that holds one, comes to.

    Raises ConfigError where it cannot be read, or says what is not understood.
    """
    config = HuggingFaceConfig.read(path / "config.json" if path.is_dir() else path, KEY)
    return {"name": _name(config.path), **shape_of(config)}


class HuggingFaceConfig:
    """The keys of one file. A key that is absent has the default of its type, and one that is null that of the key.

    Keys are asked for by the names that Llama's have; the type knows its own, which errors name.

    Attributes:
        asked_by: the dotted key that names the file, for errors.
        asked: the names of keys that were read.
    """

    def __init__(self, path: Path, content: dict[str, Any], asked_by: str, kind: ModelType | None = None) -> None:
        self.path, self.content, self.asked_by = path, content, asked_by
        self.kind = kind or ModelType()
        self.asked: set[str] = set()

    @classmethod
    def read(cls, path: Path, asked_by: str) -> HuggingFaceConfig:
        """Raises ConfigError where the file cannot be read, or is not JSON."""
        try:
            content = json.loads(path.read_bytes())
        except OSError as error:
            raise ConfigError(asked_by, str(path), f"cannot be read ({error.strerror})", NAME_A_FILE) from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(asked_by, str(path), f"is not JSON ({error})", "Give it Hugging Face's form.") from None
        return cls.of(path, content if isinstance(content, dict) else {}, asked_by)

    @classmethod
    def of(cls, path: Path, content: dict[str, Any], asked_by: str) -> HuggingFaceConfig:
        """What such a file says, with what its type says where it is silent."""
        name = content.get("model_type")
        kind = model_types().get(name) if isinstance(name, str) else None
        return cls(path, (kind.absent if kind else {}) | content, asked_by, kind)

    @property
    def reading_text(self) -> HuggingFaceConfig:
        """The part of the model that reads text, where it has others too; else this."""
        if self.kind.text is None:
            return self
        found = self.mapping("text_config")
        if not found:
            raise self.not_understood("text_config", "Give the config.json of the whole model, or of its text part.")
        return self.of(self.path, {"model_type": self.kind.text} | found, self.asked_by)

    @property
    def rotary(self) -> HuggingFaceConfig:
        """The keys of rotary positions, which older files call otherwise, and some have for each kind of layer."""
        older, newer = self.mapping("rope_scaling"), self.mapping("rope_parameters")
        found = newer or older
        whole = found.get("full_attention", found)
        return HuggingFaceConfig(self.path, whole if isinstance(whole, dict) else found, self.asked_by)

    @property
    def rotary_type(self) -> str | None:
        return self.rotary.text("rope_type") or self.rotary.text("type")

    @property
    def window(self) -> int | None:
        """The tokens that attention looks back; None where it sees all of them."""
        return None if self.kind.full_every is None else self.count("sliding_window", 0) or None

    def _key(self, key: str) -> str:
        """The file's own name of a key: of several the first that says something."""
        names = self.kind.names.get(key, (key,))
        self.asked.update(names)
        return next((name for name in names if self.content.get(name) is not None), names[0] if names else key)

    def value(self, key: str) -> Any:
        """What the file says; None where its type has no such key."""
        return self.content.get(self._key(key)) if self.kind.names.get(key) != () else None

    def not_understood(self, key: str, remedy: str) -> ConfigError:
        value = self.content.get(key)
        problem = f"has {key} = {json.dumps(value)[:80]}, which is not understood"
        return ConfigError(self.asked_by, str(self.path), f"has no {key}" if value is None else problem, remedy)

    def text(self, key: str) -> str | None:
        value = self.value(key)
        if not isinstance(value, str | None):
            raise self.not_understood(self._key(key), "Give a text.")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.value(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.not_understood(self._key(key), "Give a whole number, 0 or more.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.value(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.not_understood(self._key(key), "Give a number.")
        return float(value)

    def truth(self, key: str, default: bool) -> bool:
        value = self.value(key)
        if not isinstance(value, bool | None):
            raise self.not_understood(self._key(key), "Give true or false.")
        return default if value is None else value

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.value(key) or {}
        if not isinstance(value, dict):
            raise self.not_understood(self._key(key), "Give a mapping.")
        return value

    def says(self, key: str) -> bool:
        """True if the key asks for something: it is there, and neither false, empty, 0 nor a factor of 1."""
        value = self.value(key)
        return value is True or value not in (None, False, 0, 1, "", [], {})

    def require(self, key: str, *values: object) -> None:
        """Refuse a value of a key that would make another model of it; a key that is absent is taken for the first."""
        if self.content.get(self._key(key), values[0]) not in values:
            values_in_words = " or ".join(json.dumps(value) for value in values)
            raise self.not_understood(self._key(key), f"Known: {values_in_words}.")

    def require_known(self) -> None:
        """Refuse the first key that was neither read nor is known to change nothing, nor is another type's and off."""
        known, remedy = {*self.asked, *self.kind.keys}, "Take it out of the file if the model is the same without it."
        for key in (key for key, value in self.content.items() if value is not None and key not in known):
            if self.says(key) or key not in all_keys():
                raise self.not_understood(key, remedy)


def shape_of(config: HuggingFaceConfig) -> Shape:
    """The keys of group `model`, but for its name; raises ConfigError where the file says what is not understood."""
    kind = config.content.get("model_type")
    if not isinstance(kind, str) or kind not in model_types():
        # A program writes the name, so that one that is alike is no slip: none is proposed but the same in other signs.
        meant = next((name for name in model_types() if _letters(name) == _letters(str(kind))), None)
        remedy = f"Known: {', '.join(model_types())}. Write another one into a file of group model."
        raise config.not_understood("model_type", f"Did you mean {meant}?" if meant else remedy)
    text = config.reading_text
    shape = _shape(config) if text is config else shape_of(text)
    beside = [] if text is config else _left_out(config)
    config.require_known()
    return {**shape, "left_out": "; ".join([*beside, *filter(None, [shape["left_out"]])]) or None}


def _shape(config: HuggingFaceConfig) -> Shape:
    for key, values in config.kind.only.items():
        config.require(key, *values)
    kind, heads, hidden = config.kind, config.count("num_attention_heads"), config.count("hidden_size")
    head = config.count("qk_nope_head_dim") + config.count("qk_rope_head_dim") if kind.latent else 0
    head = head or config.count("head_dim", 0)
    parts = [part for part, keys in kind.parts.items() if _has(config, keys)]
    shape = {
        "family": kind.family,
        "num_layers": config.count("num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": config.count("intermediate_size", None if kind.gated else 4 * hidden),
        "num_attention_heads": heads,
        "num_query_groups": config.count("num_key_value_heads", heads),
        "head_size": head if head and head * heads != hidden else None,
        **_positions(config),
        "norm_epsilon": config.number("rms_norm_eps", NORM_EPSILON),
        **{part: part in parts for part in OF_A_FIELD},
        "gated_mlp": kind.gated,
        "tied_embeddings": config.truth("tie_word_embeddings", False),
        "vocab_size": config.count("vocab_size"),
        "experts": None if kind.scores is None else _experts(config, kind.scores),
        "latent_attention": _latent_attention(config) if kind.latent else None,
        "parts": [part for part in parts if part not in OF_A_FIELD],
        "left_out": "; ".join(_left_out(config)) or None,
    }
    if kind.fits_window and config.window is not None:
        shape["seq_length"] = min(shape["seq_length"], config.window)
    further = _window(config, shape["num_layers"]) | _linear_attention(config, shape["num_layers"])
    return {**shape, **further, **_scores(config, head or hidden // heads)}


def _has(config: HuggingFaceConfig, keys: bool | str | tuple[str, ...]) -> bool:
    """True if a type always has a part, or one of its keys asks for it, which may stand with the rotary positions."""
    if isinstance(keys, bool):
        return keys
    names = (keys,) if isinstance(keys, str) else keys
    said = [part.says(key) for key in names for part in (config, config.rotary)]  # all are read
    return any(said)


def _positions(config: HuggingFaceConfig) -> Shape:
    """The length of sequences, and rotary positions, which the GPT family does not have."""
    if config.kind.family == "gpt":
        tokens = config.count("max_position_embeddings", 1024)
        return {"rotary_base": None, "rotary_scaling": None, "seq_length": tokens}
    rotary, tokens = config.rotary, config.count("max_position_embeddings", MOST_TOKENS)
    known = ROTARY | ({PARTIAL} if "partial_rotary" in config.kind.parts or not rotary.says(PARTIAL) else set())
    if (unknown := next((key for key in rotary.content if key not in known), None)) is not None:
        raise rotary.not_understood(unknown, f"Known of rotary positions: {', '.join(sorted(known))}.")
    base = rotary.number("rope_theta", config.number("rope_theta", ROTARY_BASE))
    stretched, kind = config.count("original_max_position_embeddings", tokens), config.rotary_type
    if kind not in (None, "default", "llama3", "yarn", *STRETCHED):
        raise rotary.not_understood(
            "rope_type" if rotary.text("rope_type") else "type", f"Known: llama3, yarn, {', '.join(STRETCHED)}."
        )
    trained = rotary.count("original_max_position_embeddings", 0) or stretched
    scaling = None
    if kind == "llama3":
        scaling = {name: rotary.number(name) for name in LLAMA3[:3]} | {LLAMA3[3]: trained}
    elif kind == "yarn":
        scaling = _yarn(rotary, max(1.0, tokens / trained)) | {LLAMA3[3]: trained}
    return {"rotary_base": base, "rotary_scaling": scaling, "seq_length": min(tokens, trained, MOST_TOKENS)}


def _yarn(rotary: HuggingFaceConfig, stretch: float) -> Shape:
    """Source: transformers, modeling_rope_utils.py, _compute_yarn_parameters.

    Args:
        stretch: the longest sequence through the one of pretraining, for a file without a factor.
    """
    factor, weight = rotary.number("factor", stretch), rotary.number("mscale", 0.0)
    of_scores, inferred = rotary.number("mscale_all_dim", 0.0), yarn_scale(factor)
    if weight and of_scores:
        inferred = yarn_scale(factor, weight) / yarn_scale(factor, of_scores)
    values = {
        "factor": factor,
        "low_freq_factor": rotary.number("beta_slow", 1.0),
        "high_freq_factor": rotary.number("beta_fast", 32.0),
        "kind": "yarn",
        "truncate": rotary.value("truncate") is not False,
        "attention_factor": rotary.number("attention_factor", inferred),
        "mscale_all_dim": of_scores,
    }
    return {key: value for key, value in values.items() if value != RotaryScaling.model_fields[key].default}


def _left_out(config: HuggingFaceConfig) -> list[str]:
    """What the file says and the model does not hold, in words."""
    changes = ((key, config.value(key), neutral) for key, neutral in config.kind.left_out.items())
    plain = {key: value for key, value, neutral in changes if value not in (None, neutral)}
    found = [key if isinstance(value, dict | list) else f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    if (stretched := config.rotary_type) in STRETCHED:
        found.append(f"positions stretched by {stretched}")
    return found


def _window(config: HuggingFaceConfig, num_layers: int) -> Shape:
    """The window, where the type has one and the file says its size, and how often a layer sees all tokens."""
    if config.kind.full_every is None:
        return {}
    pattern = config.value("sliding_window_pattern")
    is_text = isinstance(pattern, str) and pattern == f"{'L' * (len(pattern) - 1)}G"  # LLLG is 4
    every = len(pattern) if is_text else config.count("sliding_window_pattern", config.kind.full_every)
    size, every = config.window, _rhythm(config, "sliding_attention", every, num_layers)
    return {} if size is None or every == 1 else {"attention_window": {"size": size, "full_every": every or None}}


def _scores(config: HuggingFaceConfig, head_size: int) -> Shape:
    """What caps scores and logits, and what scores are divided by the root of, where it is not the size of a head."""
    if not config.kind.caps:
        return {}
    scalar = config.number("query_pre_attn_scalar", head_size)
    return {
        "scores_cap": config.number("attn_logit_softcapping", 0) or None,
        "logits_cap": config.number("final_logit_softcapping", 0) or None,
        "query_pre_attn_scalar": None if scalar == head_size else scalar,
    }


def _linear_attention(config: HuggingFaceConfig, num_layers: int) -> Shape:
    if config.kind.linear_but_every is None:
        return {}
    every = config.count("full_attention_interval", config.kind.linear_but_every)
    linear = {
        "num_key_heads": config.count("linear_num_key_heads"),
        "num_value_heads": config.count("linear_num_value_heads"),
        "key_head_size": config.count("linear_key_head_dim"),
        "value_head_size": config.count("linear_value_head_dim"),
        "convolution_width": config.count("linear_conv_kernel_dim"),
        "full_every": _rhythm(config, "linear_attention", every, num_layers) or None,
    }
    return {"linear_attention": linear}


def _rhythm(config: HuggingFaceConfig, kind: str, every: int, num_layers: int) -> int:
    """How often a layer attends in full, among others of a kind: as a list of layers says, or `every`; 0: none does."""
    if (types := config.value("layer_types")) is None:
        return every
    # The length is compared first, as a list of as many layers as the file names may not fit into memory.
    if not (isinstance(types, list) and len(types) == num_layers):
        raise config.not_understood("layer_types", f"Known: {kind} and {FULL} of each layer.")
    every = types.index(FULL) + 1 if FULL in types else 0
    if types != [FULL if every and index % every == 0 else kind for index in range(1, num_layers + 1)]:
        raise config.not_understood("layer_types", f"Known: {kind} and {FULL} in one rhythm.")
    return every


def _experts(config: HuggingFaceConfig, scores: Scores) -> Shape:
    width = config.count("moe_intermediate_size", config.count("intermediate_size"))
    experts = {
        "num_experts": config.count("num_experts"),
        "top_k": config.count("num_experts_per_tok"),
        "ffn_hidden_size": width,
        "shared_ffn_hidden_size": config.count("shared_expert_intermediate_size", 0)
        or width * config.count("n_shared_experts", 0),
        "num_dense_layers": _dense_layers(config),
        "capacity_factor": None,
        "imbalance": 1.0,
    }
    if scores == "softmax":
        return experts
    return {
        **experts,
        "scores": scores,
        "routed_scale": config.number("routed_scaling_factor", 1.0),
        "num_groups": config.count("n_group"),
        "top_groups": config.count("topk_group"),
    }


def _dense_layers(config: HuggingFaceConfig) -> int:
    """The first layers, which have no experts; a file that lists the layers of each kind must have no others."""
    layers, dense = config.count("num_hidden_layers"), config.count("first_k_dense_replace", 0)
    if isinstance(kinds := config.value("mlp_layer_types"), list):
        dense = kinds.count("dense")
    wanted: dict[str, Iterable[object]] = {
        "mlp_layer_types": ("dense" if layer < dense else "sparse" for layer in range(layers)),
        "moe_layers": range(dense, layers),
        "moe_layer_end_index": (layers - 1,),
    }
    for key, right in wanted.items():
        said = config.value(key)
        listed = said if isinstance(said, list) else [said]
        if said not in (None, -1) and any(one != other for one, other in zip_longest(listed, right)):
            raise config.not_understood(key, "Known: experts in all layers, or in all but the first ones.")
    return dense


def _latent_attention(config: HuggingFaceConfig) -> Shape:
    return {
        "query_rank": config.count("q_lora_rank", 0) or None,
        "key_value_rank": config.count("kv_lora_rank"),
        "rotary_head_size": config.count("qk_rope_head_dim"),
        "value_head_size": config.count("v_head_dim"),
    }


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _name(path: Path) -> str:
    """The folder's name, or the file's own where that says more, as a name for people."""
    name = path.absolute().parent.name if path.stem == "config" else path.stem
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.") or "model"
