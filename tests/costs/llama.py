"""A Llama in plain torch, written for the tests alone: what the formulas are held against on the meta device."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.types.model_spec import ModelSpec


class Attention(nn.Module):
    """Grouped-query attention with its two products written out, so that a counter of products sees them."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.size = spec.head_size or spec.hidden_size // spec.num_attention_heads
        self.query = nn.Linear(spec.hidden_size, spec.num_attention_heads * self.size, bias=False)
        self.key = nn.Linear(spec.hidden_size, spec.num_query_groups * self.size, bias=False)
        self.value = nn.Linear(spec.hidden_size, spec.num_query_groups * self.size, bias=False)
        self.out = nn.Linear(spec.num_attention_heads * self.size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )  # (b, heads or groups, s, size)
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
        scores = rotated(query) @ rotated(key).transpose(-1, -2) / self.size**0.5
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2))


def rotated(x: Tensor) -> Tensor:
    """Rotary positions: pairs of dims turned by the position."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * frequencies
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * angles.cos() - right * angles.sin(), left * angles.sin() + right * angles.cos()), dim=-1)


class FeedForward(nn.Module):
    """SwiGLU, or SiLU without the gate."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(spec.hidden_size, spec.ffn_hidden_size, bias=False) if spec.gated_mlp else None
        self.up = nn.Linear(spec.hidden_size, spec.ffn_hidden_size, bias=False)
        self.down = nn.Linear(spec.ffn_hidden_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gated = functional.silu(self.gate(x)) * self.up(x) if self.gate else functional.silu(self.up(x))
        return self.down(gated)


class Layer(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(spec.hidden_size), Attention(spec)
        self.feed_forward_norm, self.feed_forward = nn.RMSNorm(spec.hidden_size), FeedForward(spec)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.embedding = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.num_layers))
        self.norm = nn.RMSNorm(spec.hidden_size)
        self.head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        if spec.tied_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of next-token prediction; both (b, s)."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())
