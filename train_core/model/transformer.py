"""GPT and Llama in plain modules; a `ModelSpec` says which parts a model has.

The GPT family has learned positions, LayerNorm, biases and GELU; the Llama family rotary positions, RMSNorm and SiLU,
where the model has them biases of queries, keys and values alone, and norms of query and key heads.
Both may share keys and values among heads, gate their feed-forward layer, and tie the output head to the embedding.

Nothing here knows that it may run in parallel: `parallel.parallelize` replaces modules by their names, also those
called `dropout` where a training drops values. Activations are sequence first, so that sequence parallelism cuts dim 0.
Shapes: s sequence, b micro-batch, h hidden, f feed-forward, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.types.model_spec import ModelSpec, RotaryScaling
from conf.types.schema import ROTARY_BASE
from train_core.model.documents import Documents, attend_packed, attend_separately
from train_core.model.elementwise import (
    GELU,
    SILU,
    attention_to_short_values,
    gated_product,
    join_heads,
    rms_norm,
    rotary_table,
    split_heads,
)
from train_core.model.mixture import MixtureOfExperts
from train_core.shared_rules import flash_runs

AMPERE = (8, 0)
"""The capability, as torch tells it, of the first GPUs of NVIDIA that multiply bf16."""


class TokenEmbedding(nn.Module):
    """Token ids (s, b) to vectors (s, b, h)."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.weight)


class Positions(nn.Module):
    """Adds a learned vector per position: (s, b, h) -> (s, b, h)."""

    def __init__(self, seq_length: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(seq_length, hidden_size))

    def forward(self, vectors: Tensor, positions: Tensor | None = None) -> Tensor:
        """`positions` (s, b) is given where they differ from sequence to sequence."""
        return vectors + (self.weight[:, None] if positions is None else functional.embedding(positions, self.weight))


class PlaceForDropout(nn.Identity):
    """Does nothing; `parallelize` puts dropout here where a training wants it."""


class Embedding(nn.Module):
    """Token ids (s, b) to the first layer's input (s, b, h)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.tokens: nn.Module = TokenEmbedding(spec.vocab_size, spec.hidden_size)
        learned = spec.family == "gpt"
        self.positions: nn.Module = Positions(spec.seq_length, spec.hidden_size) if learned else nn.Identity()
        self.dropout: nn.Module = PlaceForDropout()

    def forward(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        vectors = self.tokens(tokens)
        # Rotary positions have no place here, but turn queries and keys.
        if documents is None or isinstance(self.positions, nn.Identity):
            vectors = self.positions(vectors)
        else:
            vectors = self.positions(vectors, documents.positions)
        return self.dropout(vectors)


class RMSNorm(nn.Module):
    """Scales every vector to unit mean square: (..., h) -> (..., h)."""

    def __init__(self, hidden_size: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.epsilon)


def norm_of(spec: ModelSpec) -> nn.Module:
    return (nn.LayerNorm if spec.family == "gpt" else RMSNorm)(spec.hidden_size, spec.norm_epsilon)


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, documents: Documents | None = None
) -> Tensor:
    """Attend to each position and those before it: queries (b, heads, s, head_size) -> (b, heads, s, value's size).

    Keys and values have as many heads as queries, or one for each group of them.

    Args:
        documents: attend to those of the same document alone; None takes a sequence for one document.
    """
    if documents is None:
        return _attend(query, key, value, dropout)
    if not query.is_cuda:
        return attend_separately(partial(_attend, dropout=dropout), query, key, value, documents)
    if value.size(-1) == query.size(-1) and takes_groups(query.device, query.element_size(), query.size(-1)):
        return attend_packed(query, key, value, dropout, documents)
    return _attend(query, key, value, dropout, documents.mask)


def _attend(query: Tensor, key: Tensor, value: Tensor, dropout: float, mask: Tensor | None = None) -> Tensor:
    """`mask` (b, 1, s, s) is true where a query sees a key; None lets it see those up to its own position."""
    if mask is None and value.size(-1) < query.size(-1) and query.device.type == "cpu" and not dropout:
        return attention_to_short_values(query, key, value)
    per_group = query.size(1) // key.size(1)
    if per_group > 1 and query.is_cuda and not takes_groups(query.device, query.element_size(), query.size(-1)):
        # Without a fused kernel all scores would be kept.
        key, value = (heads.repeat_interleave(per_group, dim=1) for heads in (key, value))
    seen: dict[str, Any] = {"is_causal": True} if mask is None else {"attn_mask": mask, "is_causal": False}
    return functional.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout, enable_gqa=key.size(1) < query.size(1), **seen
    )


def takes_groups(gpu: torch.device, element_bytes: int, head_size: int) -> bool:
    """True if a GPU's kernel for these heads takes fewer keys and values than queries; asks the driver."""
    has_bf16 = torch.version.hip is not None or torch.cuda.get_device_capability(gpu) >= AMPERE
    return flash_runs(element_bytes, head_size, has_bf16=has_bf16)


class CausalAttention(nn.Module):
    """Softmax of masked scores, times values. It has no parameters, and is what selective recomputation repeats."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, documents: Documents | None = None) -> Tensor:
        """Takes what `causal_attention` takes -> (s, b, heads * head_size)."""
        return causal_attention(query, key, value, documents=documents).permute(2, 0, 1, 3).flatten(2)


class Attention(nn.Module):
    """Causal self-attention: (s, b, h) -> (s, b, h).

    The rows of the qkv weight are ordered (query group, its query heads | key head | value head, head_size), so that a
    cut along them gives whole groups.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        # Only GPT has biases everywhere; a Llama may have them for queries, keys and values, as Qwen2 does.
        biased, width = spec.family == "gpt", spec.query_size + 2 * spec.key_value_size
        self.head_size = spec.query_size // spec.num_attention_heads
        self.queries_per_group = spec.num_attention_heads // spec.num_query_groups
        self.qkv: nn.Module = nn.Linear(spec.hidden_size, width, bias=spec.has_qkv_bias)
        self.query_norm, self.key_norm = (
            RMSNorm(self.head_size, spec.norm_epsilon) if spec.qk_norm else None for _ in range(2)
        )
        self.core = CausalAttention()
        self.projection: nn.Module = nn.Linear(spec.query_size, spec.hidden_size, bias=biased)
        self.dropout: nn.Module = PlaceForDropout()

    def forward(self, x: Tensor, rotary: Tensor | None = None, documents: Documents | None = None) -> Tensor:
        norms = None if self.query_norm is None or self.key_norm is None else (self.query_norm, self.key_norm)
        heads = split_heads(self.qkv(x), self.queries_per_group, self.head_size, rotary, norms)
        return self.dropout(self.projection(self.core(*heads, documents)))


class PlaceForSharedKey(nn.Identity):
    """Does nothing; `parallelize` has the part of the keys that heads share brought to all who have heads."""


class LatentAttention(nn.Module):
    """Causal self-attention whose heads are made from short vectors: (s, b, h) -> (s, b, h).

    The rows of `down` are a short query, a short key and value, and the part of the key that positions turn, which all
    heads share. Those of the ways up stand head by head: a query without positions | with; a key without | a value.
    Elements i and i + d/2 of a part turn together. Source: arXiv 2405.04434, section 2.1.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        latent = spec.latent_attention
        assert latent is not None
        self.head_size = spec.query_size // spec.num_attention_heads
        self.value_size, rank, epsilon = latent.value_head_size, latent.query_rank, spec.norm_epsilon
        self.short_sizes = [rank or 0, latent.key_value_rank, latent.rotary_head_size]
        plain = self.head_size - latent.rotary_head_size
        self.down: nn.Module = nn.Linear(spec.hidden_size, sum(self.short_sizes), bias=False)
        self.short_query_norm = None if rank is None else RMSNorm(rank, epsilon)
        self.short_pair_norm = RMSNorm(latent.key_value_rank, epsilon)
        self.query_up: nn.Module = nn.Linear(rank or spec.hidden_size, spec.query_size, bias=False)
        width = spec.num_attention_heads * (plain + self.value_size)
        self.pair_up: nn.Module = nn.Linear(latent.key_value_rank, width, bias=False)
        self.shared_key: nn.Module = PlaceForSharedKey()
        self.core = CausalAttention()
        self.projection: nn.Module = nn.Linear(spec.attended_size, spec.hidden_size, bias=False)
        self.dropout: nn.Module = PlaceForDropout()

    def forward(self, x: Tensor, rotary: Tensor, documents: Documents | None = None) -> Tensor:
        query, pair, key = self.down(x).split(self.short_sizes, dim=-1)
        query = self.query_up(x if self.short_query_norm is None else self.short_query_norm(query))
        pairs, key = self.pair_up(self.short_pair_norm(pair)), self.shared_key(key)
        heads = join_heads(query, pairs, key, (self.head_size, self.value_size), rotary)
        return self.dropout(self.projection(self.core(*heads, documents)))


class FeedForwardActivation(nn.Module):
    """The operation between the two products: (s, b, f) -> (s, b, f), with a gate (s, b, 2f) -> (s, b, f)."""

    def __init__(self, spec: ModelSpec, width: int) -> None:
        super().__init__()
        self.gated, self.block_size = spec.gated_mlp, gate_block_size(spec, width)
        self.function = GELU if spec.family == "gpt" else SILU

    def forward(self, x: Tensor) -> Tensor:
        return gated_product(x, self.block_size, self.function) if self.gated else self.function.forward(x)


class FeedForward(nn.Module):
    """(s, b, h) -> (s, b, f) -> (s, b, h).

    With a gate, the rows of the up weight are ordered (block, gate | up, row of the block). There are as many blocks as
    the largest tensor-parallel size, so that a cut along them gives whole blocks.
    """

    def __init__(self, spec: ModelSpec, width: int | None = None) -> None:
        """`width` is f; None for the model's own, and else that of an expert for all tokens."""
        super().__init__()
        biased, width = spec.family == "gpt", spec.ffn_hidden_size if width is None else width
        self.up: nn.Module = nn.Linear(spec.hidden_size, width * (2 if spec.gated_mlp else 1), bias=biased)
        self.activation = FeedForwardActivation(spec, width)
        self.down: nn.Module = nn.Linear(width, spec.hidden_size, bias=biased)
        self.dropout: nn.Module = PlaceForDropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(self.activation(self.up(x))))


def gate_block_size(spec: ModelSpec, width: int) -> int:
    """The number of rows of a gate that stand together, in a feed-forward layer of this width.

    Every tensor-parallel size divides both the query groups and the feed-forward layer, so it divides the blocks too.
    """
    return width // math.gcd(spec.num_query_groups, width)


class Layer(nn.Module):
    """One pre-norm transformer layer: (s, b, h) -> (s, b, h)."""

    def __init__(self, spec: ModelSpec, index: int = 0) -> None:
        super().__init__()
        self.attention_norm = norm_of(spec)
        self.attention = Attention(spec) if spec.latent_attention is None else LatentAttention(spec)
        self.feed_forward_norm = norm_of(spec)
        self.feed_forward = FeedForward(spec) if index < spec.num_dense_layers else mixture_of(spec)

    def forward(self, x: Tensor, rotary: Tensor | None = None, documents: Documents | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, documents)
        return x + self.feed_forward(self.feed_forward_norm(x))


def mixture_of(spec: ModelSpec) -> MixtureOfExperts:
    assert spec.experts is not None
    width = spec.experts.shared_ffn_hidden_size
    return MixtureOfExperts(spec, FeedForward(spec, width) if width else None, PlaceForDropout())


class CrossEntropy(nn.Module):
    """Mean over all tokens: logits (s, b, V), targets (s, b) -> scalar in fp32."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def rotary_table_of(spec: ModelSpec, device: torch.device | None = None) -> Tensor | None:
    """Cosines and sines (2, s, d / 2) of every position, in fp32, for heads or parts of heads of size d.

    None where positions are learned.
    """
    if spec.family == "gpt":
        return None
    return rotary_table(spec.seq_length, rotary_frequencies(spec)).to(device)


class Transformer(nn.Module):
    """The whole model, or one stage of it: with some of its layers only, and when other parts have been cut away.

    The first stage takes token ids (s, b), the others activations (s, b, h). The last stage returns the loss (a scalar
    in fp32), the others activations.
    """

    def __init__(self, spec: ModelSpec, layers: Iterable[int] | None = None) -> None:
        super().__init__()
        self.spec = spec
        embedding = Embedding(spec)
        self.embedding: Embedding | None = embedding
        indices = range(spec.num_layers) if layers is None else layers
        # A dict and not a list: on every stage a layer keeps the name that it has in the whole model.
        self.layers = nn.ModuleDict({str(index): Layer(spec, index) for index in indices})
        self.final_norm: nn.Module | None = norm_of(spec)
        self.head: nn.Module | None = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        self.loss: nn.Module = CrossEntropy()
        self.rotary: Tensor | None
        # Not in checkpoints, because it follows from the shape of the model.
        self.register_buffer("rotary", rotary_table_of(spec), persistent=False)
        if spec.tied_embeddings:
            self.head.weight = embedding.tokens.weight  # type: ignore[assignment]

    def forward(self, x: Tensor, targets: Tensor | None = None, documents: Documents | None = None) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x, documents)
        rotary = self.rotary
        if documents is not None and rotary is not None:
            rotary = rotary[:, documents.positions]  # (2, s, b, head_size / 2)
        for layer in self.layers.values():
            x = layer(x, rotary, documents)
        if self.head is None or self.final_norm is None:
            return x
        return self.loss(self.head(self.final_norm(x)), targets)


def rotary_frequencies(spec: ModelSpec) -> Tensor:
    """Radians a token (d/2), in fp32: base^(-2i/d), stretched where the model says so.

    Source: arXiv 2104.09864, equation 15.
    """
    latent = spec.latent_attention
    head_size = spec.query_size // spec.num_attention_heads if latent is None else latent.rotary_head_size
    base = spec.rotary_base or ROTARY_BASE
    frequencies = base ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    return frequencies if spec.rotary_scaling is None else _scaled_frequencies(frequencies, spec.rotary_scaling)


def _scaled_frequencies(frequencies: Tensor, scaling: RotaryScaling) -> Tensor:
    """Llama 3.1's frequencies. Source: transformers, modeling_rope_utils.py, _compute_llama3_parameters."""
    # Pairs that turn often in the context of before keep their frequency, slow ones turn `factor` times slower, and
    # those between the two bounds are mixed.
    turns = frequencies * (scaling.original_max_position_embeddings / (2 * math.pi))
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(frequencies / scaling.factor, frequencies, kept.clamp(0, 1))
