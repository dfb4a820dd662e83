"""Attention: which kernel of a device computes it, and what makes heads of short vectors.

    causal_attention    over whole sequences, or documents apart: one by one on a CPU, all in one call of a GPU's flash
                        kernel where that takes the heads, and else under a mask
    LatentAttention     stands in the place of `transformer.Attention` where a model has it

Shapes: s sequence, b micro-batch, d head size, v head size of values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from conf.types.model_spec import ModelSpec, yarn_scale
from train_core.model.attention_blocks import (
    Attended,
    BlockMask,
    add_sinks,
    block_gradients,
    block_output,
    in_eights,
    near_mask,
    repeat_groups,
    sinks_gradient,
    takes_flash,
    unseen_of,
)
from train_core.model.documents import Documents, lengths_of
from train_core.model.elementwise import RMSNorm, UntransformedFunction, turn_heads

aten = torch.ops.aten


class PlaceForDropout(nn.Identity):
    """Does nothing; `parallelize` puts dropout here where a training wants it, and else takes it away."""


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    documents: Documents | None = None,
    window: int | None = None,
    *,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend to each position and those before it: queries (b, heads, s, head_size) -> (b, heads, s, value's size).

    Keys and values have as many heads as queries, or one for each group of them.

    Args:
        documents: attend to those of the same document alone; None takes a sequence for one document.
        window: attend to so many of these alone, a query's own position among them; None attends to all.
        cap: scores are cap x tanh(score / cap); None leaves them as they are.
        sinks: see `add_sinks`. Scores with caps or sinks are not dropped.
    """
    # Without values, as in a rehearsal, a mask would take memory that a GPU's kernel does not.
    window, cap = (None, None) if isinstance(query, FakeTensor) else (window, cap)
    attend = partial(_attend, dropout=dropout, window=window)
    if cap is not None or sinks is not None:
        attend = partial(_attend_in_a_block, sinks=sinks, cap=cap, window=window)
    elif query.is_cuda and takes_flash(query, value) and (documents is not None or window is not None):
        return attend_packed(query, key, value, dropout, documents, window)
    elif query.is_cuda and documents is not None:
        mask = documents.mask if window is None else documents.mask & near_mask(*_places(query), window)
        return _attend(query, key, value, dropout, mask=mask)
    return attend(query, key, value) if documents is None else attend_separately(attend, query, key, value, documents)


def _places(query: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the queries and of the keys of a whole sequence."""
    places = torch.arange(query.size(2), device=query.device)
    return places, places


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend_separately(attend: Attend, query: Tensor, key: Tensor, value: Tensor, documents: Documents) -> Tensor:
    """Causal attention (b, heads, s, head_size), document by document: as exact as if each were trained alone."""
    outs = []
    # Splits and not slices, whose gradients would be as large as the whole for each document.
    for spans, *heads in zip(documents.spans[0], *(each.split(1) for each in (query, key, value)), strict=True):
        lengths = lengths_of((spans,))
        of_documents = zip(*(each.split(lengths, dim=2) for each in heads), strict=True)
        outs.append(torch.cat([attend(*of_document) for of_document in of_documents], dim=2))
    return torch.cat(outs)


def attend_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    documents: Documents | None = None,
    window: int | None = None,
) -> Tensor:
    """The same in one kernel of a GPU, the flash kernel, which takes values as wide as queries."""
    num_sequences, length, head_size = query.size(0), query.size(2), query.size(-1)
    longest, bounds = (length, None) if documents is None else (documents.longest, documents.bounds)
    if bounds is None:  # of whole sequences
        bounds = torch.arange(0, (num_sequences + 1) * length, length, dtype=torch.int32, device=query.device)
    # Of the keys before its own, a query sees one less than the window has.
    near: dict[str, Any] = {} if window is None else {"window_size_left": window - 1, "window_size_right": 0}
    packed = [in_eights(each).transpose(1, 2).flatten(0, 1) for each in (query, key, value)]  # (b s, heads, head_size)
    # Queries and keys have the same bounds. The last two arguments ask for the causal mask, and for no mask of dropout.
    out: Tensor = aten._flash_attention_forward(
        *packed, bounds, bounds, longest, longest, dropout, True, False, scale=head_size**-0.5, **near
    )[0]
    in_sequences: Tensor = out[..., :head_size].unflatten(0, (num_sequences, -1))
    return in_sequences.transpose(1, 2)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, window: int | None = None, mask: Tensor | None = None
) -> Tensor:
    """`mask` (b or 1, 1, s, s) is true where a query sees a key; None lets it see those up to its own position."""
    if window is not None and window < query.size(2):
        mask = near_mask(*_places(query), window)[None, None]
    if mask is None and value.size(-1) < query.size(-1) and query.device.type == "cpu" and not dropout:
        return _attend_in_a_block(query, key, value)
    shares = key.size(1) < query.size(1)
    if shares and query.is_cuda and not takes_flash(query, value):
        # Without a fused kernel all scores would be kept.
        key, value, shares = repeat_groups(key, query), repeat_groups(value, query), False
    seen: dict[str, Any] = {"is_causal": True} if mask is None else {"attn_mask": mask, "is_causal": False}
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, enable_gqa=shares, **seen)


def _attend_in_a_block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None = None,
    cap: float | None = None,
    window: int | None = None,
) -> Tensor:
    return _OneBlock.apply(query, key, value, sinks, cap, window)


class _OneBlock(UntransformedFunction):
    """Causal attention as one block: with sinks, capped scores, or values that a CPU's kernel takes padded alone."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, cap: float | None, window: int | None
    ) -> Tensor:
        ctx.cap, ctx.window = cap, window if window is not None and window < query.size(2) else None
        out, log_sum_exp = block_output(query, key, value, _OneBlock.seen(ctx, query))
        if sinks is not None:
            out, log_sum_exp = add_sinks(out, log_sum_exp, sinks)
        ctx.save_for_backward(query, out, log_sum_exp, key, value, sinks)
        return out

    @staticmethod
    def seen(ctx: Any, query: Tensor) -> BlockMask:
        unseen = None if ctx.window is None else unseen_of(near_mask(*_places(query), ctx.window), query)
        return BlockMask(is_causal=unseen is None, unseen=unseen, cap=ctx.cap)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        *saved, sinks = ctx.saved_tensors
        gradients = block_gradients(Attended(grad_out, *saved), _OneBlock.seen(ctx, saved[0]))
        of_sinks = None if sinks is None else sinks_gradient(grad_out, saved[1], saved[2], sinks)
        return *gradients, of_sinks, None, None


class CausalAttention(nn.Module):
    """Softmax of masked scores, times values. It has no parameters, and is what selective recomputation repeats.

    Attributes:
        window, cap: as those of `causal_attention`.
    """

    def __init__(self, window: int | None = None, cap: float | None = None) -> None:
        super().__init__()
        self.window, self.cap = window, cap

    def forward(self, *heads: Tensor, documents: Documents | None = None, sinks: Tensor | None = None) -> Tensor:
        """Takes the queries, keys and values that `causal_attention` takes -> (s, b, heads * head_size)."""
        query, key, value = heads
        return self.attend(query, key, value, documents, sinks).permute(2, 0, 1, 3).flatten(2)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, documents: Documents | None, sinks: Tensor | None
    ) -> Tensor:
        return causal_attention(query, key, value, documents=documents, window=self.window, cap=self.cap, sinks=sinks)


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
        self.core, self.is_in_a_block = CausalAttention(), True  # of a CPU's, whose values are narrower than queries
        scaling = spec.rotary_scaling
        scale = 1.0 if scaling is None else yarn_scale(scaling.factor, scaling.mscale_all_dim)
        self.query_scale = None if scale == 1 else scale**2
        self.projection: nn.Module = nn.Linear(spec.attended_size, spec.hidden_size, bias=False)
        self.dropout: nn.Module | None = PlaceForDropout()

    def forward(self, x: Tensor, rotary: Tensor, documents: Documents | None = None) -> Tensor:
        query, pair, key = self.down(x).split_with_sizes(self.short_sizes, dim=-1)
        query = self.query_up(x if self.short_query_norm is None else self.short_query_norm(query))
        pairs, key = self.pair_up(self.short_pair_norm(pair)), self.shared_key(key)
        query, *pair = join_heads(query, pairs, key, (self.head_size, self.value_size), rotary)
        if self.query_scale is not None:
            query = query * self.query_scale
        out: Tensor = self.projection(self.core(query, *pair, documents=documents))
        return out if self.dropout is None else self.dropout(out)


def join_heads(
    query: Tensor, pairs: Tensor, shared: Tensor, sizes: tuple[int, int], table: Tensor
) -> tuple[Tensor, ...]:
    """Queries and keys (b, n, s, d) and values (b, n, s, v) of latent attention.

    Args:
        query: (s, b, n d), whose heads end with the part that positions turn.
        pairs: (s, b, n (d - r + v)): each head's key without that part, of r elements, and its value.
        shared: (s, b, r), the part of the keys of all heads.
        sizes: d and v.
    """
    d, v = sizes
    r = shared.size(-1)
    of_query, ends = query.unflatten(-1, (-1, d)).split_with_sizes([d - r, r], dim=-1)
    of_key, value = pairs.unflatten(-1, (-1, d - r + v)).split_with_sizes([d - r, v], dim=-1)
    turned = torch.cat((of_query, turn_heads(ends[:, :, None], table)[:, :, 0]), dim=-1)
    # Turned before it is expanded, so that backward the gradients of all heads are summed before they are turned.
    of_all_keys = turn_heads(shared[:, :, None, None], table)[:, :, 0]
    key = torch.cat((of_key, of_all_keys.expand(*of_key.shape[:-1], -1)), dim=-1)
    return tuple(heads.permute(1, 2, 0, 3) for heads in (turned, key, value.contiguous()))
