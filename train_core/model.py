"""GPT in plain modules: learned positions, LayerNorm, GELU, biases, embedding tied to the output head.

Nothing here knows that it may run in parallel; `parallelize` replaces modules by name. Activations are sequence first,
so that sequence parallelism cuts dim 0. Shapes: s sequence, b micro-batch, h hidden, f feed-forward, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.schema import ModelSpec


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

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors + self.weight[:, None]


class Embedding(nn.Module):
    """Token ids (s, b) to the first layer's input (s, b, h)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.tokens: nn.Module = TokenEmbedding(spec.vocab_size, spec.hidden_size)
        self.positions: nn.Module = Positions(spec.seq_length, spec.hidden_size)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.positions(self.tokens(tokens))
        return out


class CausalAttention(nn.Module):
    """Softmax of masked scores times values; no parameters. What selective recomputation repeats.

    The rows of the qkv weight are ordered (head, q | k | v, head_size), so that a cut along them gives whole heads.
    """

    def __init__(self, head_size: int) -> None:
        super().__init__()
        self.head_size = head_size

    def forward(self, qkv: Tensor) -> Tensor:
        """(s, b, 3h) -> (s, b, h)."""
        s, b, _ = qkv.shape
        q, k, v = qkv.view(s, b, -1, 3, self.head_size).permute(3, 1, 2, 0, 4).unbind(0)  # (b, heads, s, head_size)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.permute(2, 0, 1, 3).reshape(s, b, -1)


class Attention(nn.Module):
    """Causal self-attention: (s, b, h) -> (s, b, h)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        h = spec.hidden_size
        self.qkv: nn.Module = nn.Linear(h, 3 * h)
        self.core = CausalAttention(h // spec.num_attention_heads)
        self.projection: nn.Module = nn.Linear(h, h)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.projection(self.core(self.qkv(x)))
        return out


class FeedForward(nn.Module):
    """(s, b, h) -> (s, b, f) -> (s, b, h)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.up: nn.Module = nn.Linear(spec.hidden_size, spec.ffn_hidden_size)
        self.down: nn.Module = nn.Linear(spec.ffn_hidden_size, spec.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(functional.gelu(self.up(x), approximate="tanh"))
        return out


class Layer(nn.Module):
    """One pre-norm transformer layer: (s, b, h) -> (s, b, h)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(spec.hidden_size)
        self.attention = Attention(spec)
        self.feed_forward_norm = nn.LayerNorm(spec.hidden_size)
        self.feed_forward = FeedForward(spec)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class CrossEntropy(nn.Module):
    """Mean over all tokens: logits (s, b, V), targets (s, b) -> scalar in fp32."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class GPT(nn.Module):
    """The whole model, or one stage of it when parts have been cut away.

    The first stage takes token ids (s, b), the others activations (s, b, h). The last stage returns the loss (a scalar
    in fp32), the others activations.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        embedding = Embedding(spec)
        self.embedding: Embedding | None = embedding
        self.layers = nn.ModuleDict({str(index): Layer(spec) for index in range(spec.num_layers)})
        self.final_norm: nn.LayerNorm | None = nn.LayerNorm(spec.hidden_size)
        self.head: nn.Module | None = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        self.loss: nn.Module = CrossEntropy()
        self.head.weight = embedding.tokens.weight  # type: ignore[assignment]

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.head is None or self.final_norm is None:
            return x
        loss: Tensor = self.loss(self.head(self.final_norm(x)), targets)
        return loss
