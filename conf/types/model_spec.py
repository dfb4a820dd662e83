"""A model as its configuration states it: sizes, and what its layers are made of. Nothing here is a choice."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from conf.errors import ConfigError
from conf.nearest import nearest_divisor
from conf.types.schema import NORM_EPSILON, AtLeastOne, Count, Family, Frozen, Name, NonNegative, Positive
from conf.units import count_of


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """What YaRN multiplies by where positions are stretched `factor` times. Source: arXiv 2309.00071, section 3.4."""
    return 1 + 0.1 * weight * math.log(max(factor, 1))


class RotaryScaling(Frozen):
    """The stretching of rotary positions for sequences longer than in pretraining: Hugging Face's `llama3` or `yarn`.

    An angle that turns around less than `low_freq_factor` times in `original_max_position_embeddings` tokens grows
    `factor` times more slowly, one that turns more than `high_freq_factor` times stays, and between the two the speeds
    are blended. Source: transformers, modeling_rope_utils.py, _compute_llama3_parameters, _compute_yarn_parameters.

    Attributes:
        factor: how many times more slowly the slow angles grow.
        low_freq_factor: turns in the original length below which an angle is slow; yarn's `beta_slow`.
        high_freq_factor: turns above which an angle stays as it is; yarn's `beta_fast`.
        original_max_position_embeddings: tokens of the sequences that the model was pretrained on.
        kind: blend by the number of turns (llama3), or by the number of the angle (yarn).
        truncate: yarn blends between whole numbers.
        attention_factor: what yarn multiplies cosines and sines by.
        mscale_all_dim: with latent attention, scores are multiplied by the square of `yarn_scale` with this weight.
    """

    factor: AtLeastOne
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_position_embeddings: Count
    kind: Literal["llama3", "yarn"] = "llama3"
    truncate: bool = True
    attention_factor: Positive = 1.0
    mscale_all_dim: NonNegative = 0.0

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Llama 3.1's keys alone where the others have their defaults, as in folders that were written before."""
        fields = type(self).model_fields
        content: dict[str, object] = serialize(self)
        return {key: value for key, value in content.items() if value != fields[key].default}

    @property
    def bounds(self) -> str:
        """All but the factor, in words."""
        return f"{self.low_freq_factor:g}, {self.high_freq_factor:g} and {self.original_max_position_embeddings}"

    @model_validator(mode="after")
    def _bounds_are_apart(self) -> RotaryScaling:
        if self.high_freq_factor < self.low_freq_factor:
            problem = f"is below low_freq_factor = {self.low_freq_factor}"
            remedy = "Llama 3.1 has 1.0 and 4.0."
            raise ConfigError("model.rotary_scaling.high_freq_factor", self.high_freq_factor, problem, remedy)
        return self


Scores: TypeAlias = Literal["softmax", "sigmoid"]


class ExpertsSpec(Frozen):
    """Feed-forward layers of which each token passes through a few: a mixture of experts.

    Attributes:
        num_experts: in every such layer.
        top_k: experts that one token passes through.
        ffn_hidden_size: width of one expert.
        shared_ffn_hidden_size: width of the expert that every token passes through; 0 where there is none.
        num_dense_layers: first layers that have an ordinary feed-forward layer instead.
        capacity_factor: tokens that an expert takes at most, relative to an even share; more are dropped, and experts
            with fewer are padded (but not by this package's own trainer, which counts by sequence). Null drops and pads
            none.
        imbalance: tokens of the rank whose experts take most, relative to an even share; benchmarks force it to be 1.
        balance_loss: factor of the loss by which this package's own trainer keeps experts equally busy, such as 0.01.
        balance_bias: step of the biases on experts' scores that keep them equally busy there without a loss, such as
            0.001; each moves by so much against its expert's load after an update.
        scores: what a router there makes of its products: `softmax` over all experts, or `sigmoid` of each.
        routed_scale: factor of what a token's routed experts put out together there; 2.5 in DeepSeek-V3.
        num_groups: groups of experts there, of which each token takes the best alone; 1 lets all tokens choose among
            all experts.
        top_groups: how many groups one token's experts come from, those whose two best experts score highest.
    """

    num_experts: Count
    top_k: Count
    ffn_hidden_size: Count
    shared_ffn_hidden_size: Annotated[int, Field(ge=0)] = 0
    num_dense_layers: Annotated[int, Field(ge=0)] = 0
    capacity_factor: Positive | None = None
    imbalance: AtLeastOne = 1.0
    balance_loss: NonNegative = 0.0
    balance_bias: NonNegative = 0.0
    scores: Scores = "softmax"
    routed_scale: Positive = 1.0
    num_groups: Count = 1
    top_groups: Count = 1

    @model_validator(mode="after")
    def _tokens_find_experts(self) -> ExpertsSpec:
        if self.top_k > self.num_experts:
            problem = f"is more than model.experts.num_experts = {self.num_experts}"
            remedy = f"Use model.experts.top_k={self.num_experts} or less."
            raise ConfigError("model.experts.top_k", self.top_k, problem, remedy)
        return self

    @model_validator(mode="after")
    def _groups_hold_enough(self) -> ExpertsSpec:
        key, experts = "model.experts.num_groups", self.num_experts
        if experts % self.num_groups:
            fitting = nearest_divisor(self.num_groups, experts)
            problem = f"does not divide model.experts.num_experts = {experts}"
            raise ConfigError(key, self.num_groups, problem, f"Use {key}={fitting}.")
        key, each = "model.experts.top_groups", experts // self.num_groups
        if self.top_groups > self.num_groups:
            problem = f"is more than model.experts.num_groups = {self.num_groups}"
            raise ConfigError(key, self.top_groups, problem, f"Use {key}={self.num_groups} or less.")
        if self.top_groups * each < self.top_k:
            groups, of_each = count_of(self.top_groups, "group"), count_of(each, "expert")
            problem = f"takes {groups} of {of_each}, fewer than model.experts.top_k = {self.top_k}"
            raise ConfigError(key, self.top_groups, problem, f"Use {key}={-(-self.top_k // each)} or more.")
        return self


class LatentAttentionSpec(Frozen):
    """Attention whose queries, keys and values are made from short vectors (multi-head latent attention).

    Source: arXiv 2405.04434, section 2.1.

    Attributes:
        query_rank: width of the vector that queries are made from; null makes them from the hidden state.
        key_value_rank: the same of keys and values.
        rotary_head_size: part of a query head, and of the key that all heads share, that has rotary positions.
        value_head_size: width of one value head.
    """

    query_rank: Count | None
    key_value_rank: Count
    rotary_head_size: Count
    value_head_size: Count


class AttentionWindowSpec(Frozen):
    """Layers whose queries see the last tokens alone, between layers that see all of them.

    Attributes:
        size: tokens that such a query sees, its own among them.
        full_every: every so many layers one attends to all tokens; null: none does.
    """

    size: Count
    full_every: Annotated[int, Field(ge=2)] | None


CHUNK = 64
"""Tokens that kernels of linear attention take at once. Source: flash-linear-attention, ops/gated_delta_rule."""


class LinearAttentionSpec(Frozen):
    """Layers whose attention keeps a state of fixed size, by the gated delta rule, between layers that see all tokens.

    Source: arXiv 2412.06464.

    Attributes:
        num_key_heads: heads of queries and of keys.
        num_value_heads: heads of values, of gates and of the state.
        key_head_size: width of a head of queries or keys.
        value_head_size: width of a head of values.
        convolution_width: tokens that the convolution before it mixes.
        full_every: every so many layers one attends to all tokens, by softmax; null: none does.
    """

    num_key_heads: Count
    num_value_heads: Count
    key_head_size: Count
    value_head_size: Count
    convolution_width: Count
    full_every: Annotated[int, Field(ge=2)] | None

    @property
    def key_size(self) -> int:
        """Width of all heads of keys together, which is that of queries too."""
        return self.num_key_heads * self.key_head_size

    @property
    def value_size(self) -> int:
        return self.num_value_heads * self.value_head_size

    @property
    def products_of_token(self) -> int:
        """Multiplications of one token: its state is read twice and written once, beside products inside a chunk."""
        keys, values = self.key_head_size, self.value_head_size
        return self.num_value_heads * (3 * keys * values + 2 * CHUNK * (keys + values))


LogitsCap = Annotated[float, Field(gt=0, le=40, allow_inf_nan=False)]
"""Gemma 2 has 30. Above 40 the smallest exponential of a token's logits would leave fp32."""
ScoresCap = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
"""Gemma 2 has 50."""

Part: TypeAlias = Literal[
    "output_bias",
    "mlp_bias",
    "head_bias",
    "norm_bias",
    "post_norms",
    "norms_behind",
    "one_norm",
    "no_norms",
    "embedding_norm",
    "wide_qk_norm",
    "sinks",
    "router_bias",
    "choice_bias",
    "shared_gate",
    "query_gate",
    "learned_activation",
    "other_activation",
    "capped_activation",
    "gelu",
    "scaled_embedding",
    "scales",
    "local_rotary",
    "parallel_layers",
    "partial_rotary",
    "no_rotary",
]
"""What layers may have beside the matrices and norms of a family. `costs.counts` knows those that have
parameters; the others are there so that trainers without them are not asked to train such a model."""
OWN_PARTS: frozenset[Part] = frozenset(
    ("output_bias", "mlp_bias", "post_norms", "norms_behind", "wide_qk_norm", "gelu", "scaled_embedding")
    + ("sinks", "router_bias", "capped_activation", "local_rotary")
)
"""Those that this package's own trainer has."""
OF_HEADS: frozenset[Part] = frozenset(("output_bias", "sinks", "wide_qk_norm"))
"""Of these the ones that it has where attention is not latent."""
OF_EXPERTS: frozenset[Part] = frozenset(("router_bias", "capped_activation"))
"""Of these the ones that it has where all layers are experts."""


class ModelSpec(Frozen):
    """A transformer decoder.

    Attributes:
        name: the name of its file.
        family: `gpt` has learned positions, LayerNorm and biases; `llama` rotary positions, RMSNorm and no biases, but
            for those of `qkv_bias`.
        num_layers: transformer layers.
        hidden_size: width of the hidden state.
        ffn_hidden_size: width of the feed-forward layer (the papers' GPTs use 4 x hidden_size).
        num_attention_heads: heads of queries in every layer.
        num_query_groups: heads of keys and values, each shared by as many query heads (grouped-query attention).
        head_size: width of one head; null means hidden_size / num_attention_heads.
        rotary_base: base of the frequencies of rotary positions; null means 10,000.
        rotary_scaling: how rotary positions are stretched; null leaves them as they are.
        norm_epsilon: what every norm adds to a variance or a mean square.
        qkv_bias: queries, keys and values have biases where the family has none, as in Qwen2.
        qk_norm: every head of queries and keys passes through an RMSNorm before its position turns it, as in Qwen3.
        gated_mlp: SwiGLU, with a third matrix, instead of GELU.
        tied_embeddings: the output head is the token embedding.
        vocab_size: rows of the token embedding, padding included.
        seq_length: tokens per sequence; also the number of learned positions.
        experts: null where every layer has one ordinary feed-forward layer.
        latent_attention: null where queries, keys and values are made from the hidden state.
        attention_window: null where every query attends to all tokens before it.
        linear_attention: null where all layers have softmax attention.
        logits_cap: a bound that a tangent keeps the head's logits within: cap x tanh(logits / cap); null has none.
        scores_cap: the same of attention's scores, as in Gemma 2.
        query_pre_attn_scalar: scores are divided by its root; null takes the size of a head.
        parts: what the layers have beside that, such as biases or norms in other places, which few trainers have.
        left_out: what the file that the model was read from says, and neither a price nor a trainer here knows.
    """

    name: Name
    family: Family
    num_layers: Count
    hidden_size: Count
    ffn_hidden_size: Count
    num_attention_heads: Count
    num_query_groups: Count
    head_size: Count | None
    rotary_base: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None
    rotary_scaling: RotaryScaling | None = None
    norm_epsilon: Positive = NORM_EPSILON
    qkv_bias: bool = False
    qk_norm: bool = False
    gated_mlp: bool
    tied_embeddings: bool
    vocab_size: Count
    seq_length: Count
    experts: ExpertsSpec | None = None
    latent_attention: LatentAttentionSpec | None = None
    attention_window: AttentionWindowSpec | None = None
    linear_attention: LinearAttentionSpec | None = None
    logits_cap: LogitsCap | None = None
    scores_cap: ScoresCap | None = None
    query_pre_attn_scalar: Positive | None = None
    parts: Annotated[tuple[Part, ...], Field(strict=False)] = ()
    left_out: str | None = None

    @property
    def narrow_window(self) -> int | None:
        """Tokens of the window where it is narrower than a sequence, so that it changes what attention computes."""
        window = self.attention_window
        return window.size if window is not None and window.size < self.seq_length else None

    def has_window(self, layer: int) -> bool:
        """True of a layer, counted from 0, that has a window, narrow or not."""
        window = self.attention_window
        return window is not None and (window.full_every is None or (layer + 1) % window.full_every != 0)

    def window_of(self, layer: int) -> int | None:
        """Tokens of the window of a layer, counted from 0; None where its queries see all of a sequence."""
        return self.narrow_window if self.has_window(layer) else None

    @property
    def further_parts(self) -> tuple[Part, ...]:
        """The parts that this package's own trainer lacks."""
        experts = self.experts
        has_others = experts is None or experts.num_dense_layers or experts.shared_ffn_hidden_size
        own = OWN_PARTS - OF_EXPERTS if has_others else OWN_PARTS
        own = own if self.latent_attention is None else own - OF_HEADS
        # It has these for rotary positions, and for one kind of norms of queries and keys.
        own = own - {"wide_qk_norm"} if self.family == "gpt" or self.qk_norm else own
        own = own - {"post_norms"} if "norms_behind" in self.parts else own
        return tuple(part for part in self.parts if part not in own)

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * (self.head_size or self.hidden_size // self.num_attention_heads)

    @property
    def key_value_size(self) -> int:
        """Width of all key heads together, which is also the width of all value heads."""
        # By way of query_size, since only that knows which width of a head applies.
        return self.query_size // self.num_attention_heads * self.num_query_groups

    @property
    def value_size(self) -> int:
        """Width of all value heads together."""
        latent = self.latent_attention
        return self.key_value_size if latent is None else self.num_query_groups * latent.value_head_size

    @property
    def attended_size(self) -> int:
        """Width of what the attention core puts out: a head of values for every head of queries."""
        latent = self.latent_attention
        return self.query_size if latent is None else self.num_attention_heads * latent.value_head_size

    @property
    def has_qkv_bias(self) -> bool:
        """True if queries, keys and values have biases: as the family has them, or by themselves."""
        return self.family == "gpt" or self.qkv_bias

    @property
    def has_output_bias(self) -> bool:
        """True if the projection behind attention has a bias."""
        return self.family == "gpt" or "output_bias" in self.parts

    @property
    def has_mlp_bias(self) -> bool:
        """True if both products of feed-forward networks, and of experts, have biases."""
        return self.family == "gpt" or "mlp_bias" in self.parts

    @property
    def scores_in_blocks(self) -> bool:
        """True if scores are capped or have a sink beside them, which kernels with dropout do not know."""
        return self.scores_cap is not None or "sinks" in self.parts

    @property
    def seen_share(self) -> float:
        """Pairs of a query and a key that the attention core computes, over those without windows: a mean of layers."""
        linear, size = self.linear_attention, self.narrow_window
        if linear is not None:
            triangle = self.seq_length * (self.query_size + self.attended_size) / 2
            seen = min(1.0, linear.products_of_token / triangle)
        elif size is not None:
            # Of a causal triangle with sides of 1, a window of w leaves out a triangle with sides of 1 - w.
            seen = 1.0 - (1.0 - size / self.seq_length) ** 2
        else:
            return 1.0
        full = self.num_full_layers / self.num_layers
        return full + (1.0 - full) * seen

    @property
    def num_full_layers(self) -> int:
        """Layers whose queries see all tokens before them, by softmax."""
        others = self.linear_attention or self.attention_window
        if others is None:
            return self.num_layers
        return 0 if others.full_every is None else self.num_layers // others.full_every

    @property
    def num_dense_layers(self) -> int:
        """First layers that have an ordinary feed-forward layer; all of them where there are no experts."""
        return self.num_layers if self.experts is None else self.experts.num_dense_layers

    @model_validator(mode="after")
    def _experts_fit(self) -> ModelSpec:
        if self.experts is not None and self.experts.num_dense_layers >= self.num_layers:
            problem = f"leaves none of model.num_layers = {self.num_layers} layers with experts"
            remedy = "Use fewer dense layers, or model.experts=null."
            raise ConfigError("model.experts.num_dense_layers", self.experts.num_dense_layers, problem, remedy)
        return self

    @model_validator(mode="after")
    def _short_vectors_fit(self) -> ModelSpec:
        latent, size = self.latent_attention, self.query_size // self.num_attention_heads
        if latent is None:
            return self
        if self.family == "gpt":
            problem = "has learned positions, and model.latent_attention rotary ones"
            remedy = "Use model.family=llama, or model.latent_attention=null."
            raise ConfigError("model.family", "gpt", problem, remedy)
        if latent.rotary_head_size >= size:
            problem = f"leaves nothing of a query head of model.head_size = {size}"
            remedy = "Give model.head_size both parts together: DeepSeek has 128 + 64 = 192."
            raise ConfigError("model.latent_attention.rotary_head_size", latent.rotary_head_size, problem, remedy)
        if self.num_query_groups != self.num_attention_heads:
            raise ConfigError(
                "model.num_query_groups",
                self.num_query_groups,
                f"differs from model.num_attention_heads = {self.num_attention_heads}, and latent attention makes keys"
                " and values for every head",
                f"Use model.num_query_groups={self.num_attention_heads}.",
            )
        return self

    @model_validator(mode="after")
    def _own_biases_and_norms_fit(self) -> ModelSpec:
        for key, beside_gpt, latent_has in (
            ("qkv_bias", "cannot be chosen with model.family = gpt, which has biases everywhere", "no such biases"),
            ("qk_norm", "is RMSNorm, and model.family = gpt has LayerNorm", "norms of its own"),
        ):
            remedy = f"Use model.{key}=false"
            if getattr(self, key) and self.family == "gpt":
                raise ConfigError(f"model.{key}", True, beside_gpt, f"{remedy}, or model.family=llama.")
            if getattr(self, key) and self.latent_attention is not None:
                problem = f"does not go with model.latent_attention, which has {latent_has}"
                raise ConfigError(f"model.{key}", True, problem, f"{remedy}.")
        return self

    @model_validator(mode="after")
    def _local_positions_fit(self) -> ModelSpec:
        if "local_rotary" in self.parts and self.family == "gpt":  # a Gemma 3 without windows has the part, too
            problem = (
                "names local_rotary, other rotary positions in layers with a window, and model.family = gpt has none"
            )
            raise ConfigError("model.parts", list(self.parts), problem, "Take it out, or use model.family=llama.")
        return self

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelSpec:
        if self.head_size is None and self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                "model.num_attention_heads",
                self.num_attention_heads,
                f"does not divide model.hidden_size = {self.hidden_size}",
                f"Use model.num_attention_heads={nearest_divisor(self.num_attention_heads, self.hidden_size)}, or give"
                " model.head_size.",
            )
        if self.num_attention_heads % self.num_query_groups:
            problem = f"does not divide model.num_attention_heads = {self.num_attention_heads}"
            remedy = f"Use model.num_query_groups={nearest_divisor(self.num_query_groups, self.num_attention_heads)}."
            raise ConfigError("model.num_query_groups", self.num_query_groups, problem, remedy)
        if self.family == "llama" and self.query_size // self.num_attention_heads % 2:
            problem = "is odd, and rotary positions turn pairs of its elements"
            remedy = "Choose an even model.head_size, or fewer or more heads."
            raise ConfigError("model.head_size", self.query_size // self.num_attention_heads, problem, remedy)
        if self.family == "gpt" and self.rotary_scaling is not None:
            problem = "stretches rotary positions, and model.family = gpt has learned ones"
            remedy = "Use model.rotary_scaling=null, or model.family=llama."
            raise ConfigError("model.rotary_scaling", self.rotary_scaling.model_dump(), problem, remedy)
        return self
