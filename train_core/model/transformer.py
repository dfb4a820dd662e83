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

import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.types.model_spec import ModelSpec
from train_core.model.attention import CausalAttention, LatentAttention, PlaceForDropout
from train_core.model.documents import Documents
from train_core.model.elementwise import GELU, SILU, RMSNorm, WideNorm, gated_product, split_heads
from train_core.model.initialize import rotary_table_of
from train_core.model.mixture import MixtureOfExperts


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


class Embedding(nn.Module):
    """Token ids (s, b) to the first layer's input (s, b, h)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.tokens: nn.Module = TokenEmbedding(spec.vocab_size, spec.hidden_size)
        learned = spec.family == "gpt"
        self.positions: nn.Module = Positions(spec.seq_length, spec.hidden_size) if learned else nn.Identity()
        self.dropout: nn.Module | None = PlaceForDropout()
        self.scale = math.sqrt(spec.hidden_size) if "scaled_embedding" in spec.parts else None

    def forward(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        vectors = self.tokens(tokens)
        if self.scale is not None:  # rounded to the type of the weights, as Gemma's were trained
            vectors = vectors * torch.full((), self.scale, dtype=vectors.dtype, device=vectors.device)
        # Rotary positions have no place here, but turn queries and keys.
        if documents is None or isinstance(self.positions, nn.Identity):
            vectors = self.positions(vectors)
        else:
            vectors = self.positions(vectors, documents.positions)
        return vectors if self.dropout is None else self.dropout(vectors)


def norm_of(spec: ModelSpec) -> nn.Module:
    return (nn.LayerNorm if spec.family == "gpt" else RMSNorm)(spec.hidden_size, spec.norm_epsilon)


class Sinks(nn.Module):
    """One more score of each head, beside those of keys; see `attention.add_sinks`."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


class Attention(nn.Module):
    """Causal self-attention: (s, b, h) -> (s, b, h).

    The rows of the qkv weight are ordered (query group, its query heads | key head | value head, head_size), so that a
    cut along them gives whole groups.
    """

    def __init__(self, spec: ModelSpec, index: int = 0) -> None:
        """`index` is the layer's, of which some attend to all tokens where others have a window."""
        super().__init__()
        # Only GPT has biases everywhere; a Llama may have them for queries, keys and values, as Qwen2 does, or here.
        biased, width = spec.has_output_bias, spec.query_size + 2 * spec.key_value_size
        self.head_size = spec.query_size // spec.num_attention_heads
        self.queries_per_group = spec.num_attention_heads // spec.num_query_groups
        self.qkv: nn.Module = nn.Linear(spec.hidden_size, width, bias=spec.has_qkv_bias)
        self.query_norm, self.key_norm = (
            RMSNorm(self.head_size, spec.norm_epsilon) if spec.qk_norm else None for _ in range(2)
        )
        self.queries_norm, self.keys_norm = (
            WideNorm(width, spec.norm_epsilon) if "wide_qk_norm" in spec.parts else None
            for width in (spec.query_size, spec.key_value_size)
        )
        self.core = CausalAttention(spec.window_of(index), spec.scores_cap)
        self.is_in_a_block = spec.scores_in_blocks
        self.sinks = Sinks(torch.empty(spec.num_attention_heads)) if "sinks" in spec.parts else None
        # Scores are divided by the root of a head's size; this makes it another root.
        scalar = spec.query_pre_attn_scalar
        self.query_scale = None if scalar is None else math.sqrt(self.head_size / scalar)
        self.projection: nn.Module = nn.Linear(spec.query_size, spec.hidden_size, bias=biased)
        self.dropout: nn.Module | None = PlaceForDropout()

    def forward(self, x: Tensor, rotary: Tensor | None = None, documents: Documents | None = None) -> Tensor:
        norms = self.query_norm or self.queries_norm, self.key_norm or self.keys_norm
        query, *pair = split_heads(self.qkv(x), self.queries_per_group, self.head_size, rotary, norms)
        if self.query_scale is not None:
            query = query * self.query_scale
        sinks = None if self.sinks is None else self.sinks.weight
        out: Tensor = self.projection(self.core(query, *pair, documents=documents, sinks=sinks))
        return out if self.dropout is None else self.dropout(out)


class FeedForwardActivation(nn.Module):
    """The operation between the two products: (s, b, f) -> (s, b, f), with a gate (s, b, 2f) -> (s, b, f)."""

    def __init__(self, spec: ModelSpec, width: int) -> None:
        super().__init__()
        self.gated, self.block_size = spec.gated_mlp, gate_block_size(spec, width)
        self.function = GELU if spec.family == "gpt" or "gelu" in spec.parts else SILU

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
        biased, width = spec.has_mlp_bias, spec.ffn_hidden_size if width is None else width
        self.up: nn.Module = nn.Linear(spec.hidden_size, width * (2 if spec.gated_mlp else 1), bias=biased)
        self.activation = FeedForwardActivation(spec, width)
        self.down: nn.Module = nn.Linear(width, spec.hidden_size, bias=biased)
        self.dropout: nn.Module | None = PlaceForDropout()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.activation(self.up(x)))
        return out if self.dropout is None else self.dropout(out)


def gate_block_size(spec: ModelSpec, width: int) -> int:
    """The number of rows of a gate that stand together, in a feed-forward layer of this width.

    Every tensor-parallel size divides both the query groups and the feed-forward layer, so it divides the blocks too.
    """
    return width // math.gcd(spec.num_query_groups, width)


class Layer(nn.Module):
    """One transformer layer: (s, b, h) -> (s, b, h).

    A norm comes before attention and before the feed-forward network, and where the model has them another after each;
    in some models these alone.
    """

    def __init__(self, spec: ModelSpec, index: int = 0) -> None:
        super().__init__()
        before, behind = "norms_behind" not in spec.parts, not {"norms_behind", "post_norms"}.isdisjoint(spec.parts)
        self.attention_norm = norm_of(spec) if before else nn.Identity()
        self.attention = Attention(spec, index) if spec.latent_attention is None else LatentAttention(spec)
        self.feed_forward_norm = norm_of(spec) if before else nn.Identity()
        self.feed_forward = FeedForward(spec) if index < spec.num_dense_layers else mixture_of(spec)
        self.post_attention_norm, self.post_feed_forward_norm = (norm_of(spec) if behind else None for _ in range(2))
        self.has_local_rotary = "local_rotary" in spec.parts and spec.has_window(index)

    def forward(self, x: Tensor, rotary: Tensor | None = None, documents: Documents | None = None) -> Tensor:
        # No name for what is added: it would keep attention's output beside the feed-forward network.
        x = x + _normed(self.post_attention_norm, self.attention(self.attention_norm(x), rotary, documents))
        return x + _normed(self.post_feed_forward_norm, self.feed_forward(self.feed_forward_norm(x)))


def _normed(norm: nn.Module | None, out: Tensor) -> Tensor:
    if norm is None:
        return out
    normed: Tensor = norm(out)
    return normed


def mixture_of(spec: ModelSpec) -> MixtureOfExperts:
    assert spec.experts is not None
    width = spec.experts.shared_ffn_hidden_size
    return MixtureOfExperts(spec, FeedForward(spec, width) if width else None, PlaceForDropout())


class CrossEntropy(nn.Module):
    """Mean over all tokens: logits (s, b, V), targets (s, b) -> scalar in fp32."""

    def __init__(self, cap: float | None = None) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = logits.flatten(0, 1).float()
        capped = logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)
        return functional.cross_entropy(capped, targets.flatten())


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
        self.loss: nn.Module = CrossEntropy(spec.logits_cap)
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
        whole, local = (rotary, None) if rotary is None or len(rotary) == 2 else rotary.chunk(2)
        for layer in self.layers.values():
            x = layer(x, local if layer.has_local_rotary else whole, documents)
        if self.head is None or self.final_norm is None:
            return x
        return self.loss(self.head(self.final_norm(x)), targets)
