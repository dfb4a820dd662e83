"""Attention: which kernel of a device computes it, and what makes heads of short vectors.

    causal_attention    over whole sequences, or documents apart: one by one on a CPU, all in one call of a GPU's flash
                        kernel where that takes the heads, and else under a mask
    block_output        of some of the keys, for `parallel.context_parallel`, which merges blocks; and `block_gradients`
    add_sinks           one more score of each head, beside those of the keys, without a value (gpt-oss)
    LatentAttention     stands in the place of `transformer.Attention` where a model has it

Shapes: s sequence, b micro-batch, d head size, v head size of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function
from torch.nn import functional

from conf.types.model_spec import ModelSpec
from train_core.model.documents import Documents, lengths_of
from train_core.model.elementwise import RMSNorm, turn_heads
from train_core.shared_rules import flash_runs

ALIGNED = 32
"""The memory-efficient kernel writes the log-sum-exp of a multiple of so many queries."""

HEAD_MULTIPLE = 8
"""A GPU's fused kernels take heads whose size is a multiple of so many; torch's own function pads them as well."""

aten = torch.ops.aten

AMPERE = (8, 0)
"""The capability, as torch tells it, of the first GPUs of NVIDIA that multiply bf16."""


class PlaceForDropout(nn.Identity):
    """Does nothing; `parallelize` puts dropout here where a training wants it."""


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
    if cap is not None or sinks is not None:
        attend = partial(_attend_in_a_block, sinks=sinks, cap=cap, window=window)
        return (
            attend(query, key, value) if documents is None else attend_separately(attend, query, key, value, documents)
        )
    if documents is None and window is None:
        return _attend(query, key, value, dropout)
    if not query.is_cuda:
        attend = partial(_attend_near, dropout=dropout, window=window)
        return (
            attend(query, key, value) if documents is None else attend_separately(attend, query, key, value, documents)
        )
    if _has_flash(query, value):
        return attend_packed(query, key, value, dropout, documents, window)
    if documents is None:
        return _attend_near(query, key, value, dropout, window)
    near = documents.mask if window is None else documents.mask & near_mask(*_places(query), window)
    return _attend(query, key, value, dropout, near)


def near_mask(queries: Tensor, keys: Tensor, window: int) -> Tensor:
    """The keys (m) that each query (n) sees, by the places of both in a sequence: (n, m), true where it does."""
    distance = queries[:, None] - keys
    return (distance >= 0) & (distance < window)


def _places(query: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the queries and of the keys of a whole sequence."""
    places = torch.arange(query.size(2), device=query.device)
    return places, places


def _attend_near(query: Tensor, key: Tensor, value: Tensor, dropout: float, window: int | None) -> Tensor:
    is_narrow = window is not None and window < query.size(2)
    mask = near_mask(*_places(query), window)[None, None] if is_narrow and window is not None else None
    return _attend(query, key, value, dropout, mask)


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


def _attend(query: Tensor, key: Tensor, value: Tensor, dropout: float, mask: Tensor | None = None) -> Tensor:
    """`mask` (b or 1, 1, s, s) is true where a query sees a key; None lets it see those up to its own position."""
    if mask is None and value.size(-1) < query.size(-1) and query.device.type == "cpu" and not dropout:
        return _attend_in_a_block(query, key, value)
    if key.size(1) < query.size(1) and query.is_cuda and not _has_flash(query, value):
        # Without a fused kernel all scores would be kept.
        key, value = (_repeat_groups(heads, query) for heads in (key, value))
    seen: dict[str, Any] = {"is_causal": True} if mask is None else {"attn_mask": mask, "is_causal": False}
    return functional.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout, enable_gqa=key.size(1) < query.size(1), **seen
    )


def takes_groups(gpu: torch.device, element_bytes: int, head_size: int) -> bool:
    """True if a GPU's kernel for these heads takes fewer keys and values than queries; asks the driver."""
    has_bf16 = torch.version.hip is not None or torch.cuda.get_device_capability(gpu) >= AMPERE
    return flash_runs(element_bytes, head_size, has_bf16=has_bf16)


def _attend_in_a_block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None = None,
    cap: float | None = None,
    window: int | None = None,
) -> Tensor:
    return _OneBlock.apply(query, key, value, sinks, cap, window)  # type: ignore[no-untyped-call]


class _OneBlock(Function):
    """Causal attention as one block: with sinks, capped scores, or values that a CPU's kernel takes padded alone."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, cap: float | None, window: int | None
    ) -> Tensor:
        ctx.cap, ctx.window = cap, window if window is not None and window < query.size(2) else None
        out, log_sum_exp = block_output(query, key, value, cap=cap, **_OneBlock.seen(ctx.window, query))
        if sinks is not None:
            out, log_sum_exp = add_sinks(out, log_sum_exp, sinks)
        ctx.save_for_backward(query, out, log_sum_exp, key, value, sinks)
        return out

    @staticmethod
    def seen(window: int | None, query: Tensor) -> dict[str, Any]:
        if window is None:
            return {"is_causal": True}
        return {"is_causal": False, "unseen": unseen_of(near_mask(*_places(query), window), query)}

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        *saved, sinks = ctx.saved_tensors
        gradients = block_gradients(grad_out, *saved, cap=ctx.cap, **_OneBlock.seen(ctx.window, saved[0]))
        of_sinks = None if sinks is None else sinks_gradient(grad_out, saved[1], saved[2], sinks)
        return *gradients, of_sinks, None, None


def add_sinks(out: Tensor, log_sum_exp: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """As if each query (b, heads, n) saw one more key, of score `sinks` (heads) and without a value.

    Source: arXiv 2309.17453; openai/gpt-oss, model.py, `sdpa`.
    """
    scores = sinks.to(log_sum_exp.dtype)[:, None]
    share = (log_sum_exp - scores).sigmoid()  # of all exponentials, those of keys
    return (out * share[..., None]).to(out.dtype), torch.logaddexp(log_sum_exp, scores)


def sinks_gradient(grad_out: Tensor, out: Tensor, log_sum_exp: Tensor, sinks: Tensor) -> Tensor:
    """The gradient of `sinks`, from what `add_sinks` put out."""
    share = (sinks.to(log_sum_exp.dtype)[:, None] - log_sum_exp).exp()
    return -(share * (grad_out * out).sum(-1, dtype=log_sum_exp.dtype)).sum((0, 2)).to(sinks.dtype)


def as_wide(narrow: Tensor, query: Tensor) -> Tensor:
    """Values padded to the width of queries, for a CPU's kernel."""
    # Without values, as in a rehearsal, nothing is computed, and nothing padded: kernels of GPUs take narrow ones.
    if isinstance(narrow, FakeTensor):
        return narrow
    return functional.pad(narrow, (0, query.size(-1) - narrow.size(-1)))


def in_eights(heads: Tensor) -> Tensor:
    """Heads that a GPU's fused kernels take, which add zeros to scores and leave zeros behind the output."""
    missing = -heads.size(-1) % HEAD_MULTIPLE
    return functional.pad(heads, (0, missing)) if missing else heads


def as_narrow(wide: Tensor, value: Tensor) -> Tensor:
    """The kernel's output, or a gradient, in the width of the values."""
    # Heads of a token stand together, as the kernel writes them, so that the next product takes them as they are.
    return wide.transpose(1, 2)[..., : value.size(-1)].contiguous().transpose(1, 2)


class CausalAttention(nn.Module):
    """Softmax of masked scores, times values. It has no parameters, and is what selective recomputation repeats.

    Attributes:
        window, cap: as those of `causal_attention`.
    """

    def __init__(self, window: int | None = None, cap: float | None = None) -> None:
        super().__init__()
        self.window, self.cap = window, cap

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        documents: Documents | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Takes what `causal_attention` takes -> (s, b, heads * head_size)."""
        out = causal_attention(query, key, value, documents=documents, window=self.window, cap=self.cap, sinks=sinks)
        return out.permute(2, 0, 1, 3).flatten(2)


UNSEEN = -3e4
"""What is added to the score of a key that a query does not see. Its exponential is 0 beside that of one which is seen,
in every type, and a query of a block without any of these keeps a finite log-sum-exp."""


def unseen_of(seen: Tensor, like: Tensor) -> Tensor:
    """What `block_output` takes for the keys (m) that each query (n) sees: (n, m), true where it does."""
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(~seen, UNSEEN)


def block_output(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool,
    unseen: Tensor | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """One block by a device's fused kernel: queries (b, heads, n, d), keys (b, groups, m, d), values (b, groups, m, v).

    torch's `scaled_dot_product_attention` hands out neither the log-sum-exp, by which blocks are merged, nor gradients
    that follow from one over more keys than the block's, so that its kernels are called by their own names. v <= d.

    Args:
        unseen: UNSEEN (n, m) where a query does not see a key, and else 0; None where all are seen, or `is_causal`.
        cap: as that of `causal_attention`, for which kernels have no place: see `_CappedRows`.

    Returns:
        The output (b, heads, n, v), and the log-sum-exp (b, heads, n).
    """
    if cap is not None:
        return _capped_output(query, key, value, cap, is_causal=is_causal, unseen=unseen)
    if query.is_cuda:
        return _gpu_output(query, key, value, is_causal=is_causal, unseen=unseen)
    # The kernel takes values as wide as keys alone; narrower ones are padded for it.
    is_short = value.size(-1) < query.size(-1)
    padded = as_wide(value, query) if is_short else value
    out, log_sum_exp = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, padded, 0.0, is_causal, attn_mask=unseen
    )
    return as_narrow(out, value) if is_short else out, log_sum_exp


def _gpu_output(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool, unseen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    head_size, value_size = query.size(-1), value.size(-1)
    scale = head_size**-0.5
    has_flash = unseen is None and _has_flash(query, value)
    query, key, value = map(in_eights, (query, key, value))
    if has_flash:
        out, log_sum_exp, *_ = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, scale=scale)
    else:
        key, value = (_repeat_groups(heads, query) for heads in (key, value))
        # True asks for the log-sum-exp, which the kernel leaves out otherwise.
        out, log_sum_exp, *_ = aten._scaled_dot_product_efficient_attention(
            query, key, value, _as_bias(unseen, query), True, 0.0, is_causal, scale=scale
        )
    # Without the queries by which the memory-efficient kernel rounds up.
    return out[..., :value_size], log_sum_exp[:, :, : query.size(2)]


def block_gradients(
    grad_out: Tensor,
    query: Tensor,
    out: Tensor,
    log_sum_exp: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool,
    unseen: Tensor | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The block's summands of the gradients of queries, keys and values.

    Args:
        grad_out, out, log_sum_exp: over all keys that the queries see, those of other blocks included.
        unseen, cap: as those of `block_output`.
    """
    if cap is not None:
        every = (grad_out, query, out, log_sum_exp, key, value)
        return _capped_gradients(*every, cap, is_causal=is_causal, unseen=unseen)
    if query.is_cuda:
        return _gpu_gradients(grad_out, query, out, log_sum_exp, key, value, is_causal=is_causal, unseen=unseen)
    is_short = value.size(-1) < query.size(-1)
    wide = [as_wide(each, query) if is_short else each for each in (grad_out, value, out)]
    of_query, of_key, of_value = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        wide[0], query, key, *wide[1:], log_sum_exp, 0.0, is_causal, attn_mask=unseen
    )
    return of_query, of_key, as_narrow(of_value, value) if is_short else of_value


def _gpu_gradients(
    grad_out: Tensor,
    query: Tensor,
    out: Tensor,
    log_sum_exp: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool,
    unseen: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    head_size, value_size, has_flash = query.size(-1), value.size(-1), unseen is None and _has_flash(query, value)
    scale = head_size**-0.5
    grad_out, query, out, key, value = map(in_eights, (grad_out, query, out, key, value))
    if has_flash:
        grads = aten._scaled_dot_product_flash_attention_backward(
            # The kernel takes no strides for the log-sum-exp, and of some of the queries it is not contiguous. The two
            # None are the ends of packed sequences, of which there are none.
            *(grad_out, query, key, value, out, log_sum_exp.contiguous(), None, None, query.size(2), key.size(2)),
            *(0.0, is_causal, *_no_randomness(query)),
            scale=scale,
        )
    else:
        num_groups, padding = key.size(1), -query.size(2) % ALIGNED
        key, value = (_repeat_groups(heads, query) for heads in (key, value))
        # exp(score - inf) is 0, so that queries which do not exist give keys and values no gradient.
        padded = functional.pad(log_sum_exp, (0, padding), value=torch.inf)
        of_query, *of_pairs, _ = aten._scaled_dot_product_efficient_attention_backward(
            *(grad_out, query, key, value, _as_bias(unseen, query), out, padded, *_no_randomness(query)),
            *(0.0, [True, True, True, False], is_causal),
            scale=scale,
        )
        # The query heads of a group have one key and one value, whose gradient is the sum over them.
        grads = (of_query, *(grad.unflatten(1, (num_groups, -1)).sum(2) for grad in of_pairs))
    of_query, of_key, of_value = grads
    return of_query[..., :head_size], of_key[..., :head_size], of_value[..., :value_size]


ROWS = 256
"""Queries whose capped scores are there at once."""


class _CappedRows(NamedTuple):
    """Some queries of a block, with all operations on scores in torch's own, as fused kernels cap none.

    Attributes:
        rows: which of the block's queries these are.
        query: those of each group of heads, one behind the other, (b, groups, r, d).
        scores: capped, without those of keys that a query does not see, (b, groups, r, m); in fp32, or wider.
    """

    rows: slice
    query: Tensor
    scores: Tensor


def _of_groups(heads: Tensor, rows: slice, num_groups: int) -> Tensor:
    """Some of the queries of all heads (b, heads, n, d) as (b, groups, r, d)."""
    return heads[:, :, rows].unflatten(1, (num_groups, -1)).flatten(2, 3)


def _capped_rows(
    query: Tensor, key: Tensor, cap: float, *, is_causal: bool, unseen: Tensor | None
) -> Iterator[_CappedRows]:
    wide = torch.promote_types(query.dtype, torch.float32)
    places = torch.arange(key.size(2), device=key.device)
    for start in range(0, query.size(2), ROWS):
        rows = slice(start, min(start + ROWS, query.size(2)))
        # Of a causal block nobody sees the keys behind these queries.
        some, keys = _of_groups(query, rows, key.size(1)), key[:, :, : rows.stop] if is_causal else key
        scores = (some @ keys.transpose(-1, -2)).to(wide).mul_(query.size(-1) ** -0.5 / cap).tanh_().mul_(cap)
        hidden = unseen_of(places[rows, None] >= places[: rows.stop], query) if is_causal else unseen
        if hidden is not None:
            of_rows = hidden if is_causal else hidden[rows]
            scores.unflatten(2, (-1, of_rows.size(0))).add_(of_rows)
        yield _CappedRows(rows, some, scores)


def _capped_output(
    query: Tensor, key: Tensor, value: Tensor, cap: float, *, is_causal: bool, unseen: Tensor | None
) -> tuple[Tensor, Tensor]:
    outs, sums = [], []
    for rows, _, scores in _capped_rows(query, key, cap, is_causal=is_causal, unseen=unseen):
        of_heads = (query.size(0), query.size(1), rows.stop - rows.start)
        log_sum_exp = scores.logsumexp(-1, keepdim=True)
        weights = scores.sub_(log_sum_exp).exp_().to(value.dtype)
        outs.append((weights @ value[:, :, : weights.size(-1)]).reshape(*of_heads, value.size(-1)))
        sums.append(log_sum_exp.reshape(of_heads))
    return torch.cat(outs, dim=2), torch.cat(sums, dim=2)


def _capped_gradients(
    grad_out: Tensor,
    query: Tensor,
    out: Tensor,
    log_sum_exp: Tensor,
    key: Tensor,
    value: Tensor,
    cap: float,
    *,
    is_causal: bool,
    unseen: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    groups, of_query = key.size(1), torch.empty_like(query)
    of_key, of_value = (torch.zeros_like(each, dtype=log_sum_exp.dtype) for each in (key, value))
    # What a query's weights have in common moves nothing, as they add up to one.
    common = (grad_out * out).sum(-1, keepdim=True, dtype=log_sum_exp.dtype)
    for rows, some, scores in _capped_rows(query, key, cap, is_causal=is_causal, unseen=unseen):
        keys = slice(scores.size(-1))
        ones, known = (_of_groups(each, rows, groups) for each in (grad_out.to(value.dtype), common))
        weights = (scores - _of_groups(log_sum_exp[..., None], rows, groups)).exp_()
        of_value[:, :, keys] += weights.to(value.dtype).transpose(-1, -2) @ ones
        slope = scores.div_(cap).square_().neg_().add_(1).mul_(query.size(-1) ** -0.5)  # of the tangent, 1 - tanh^2
        of_weights = ones @ value[:, :, keys].transpose(-1, -2)
        of_scores = of_weights.sub(known).mul_(weights).mul_(slope).to(query.dtype)
        of_query[:, :, rows] = (of_scores @ key[:, :, keys]).reshape(of_query[:, :, rows].shape)
        of_key[:, :, keys] += of_scores.transpose(-1, -2) @ some
    return of_query, of_key.to(key.dtype), of_value.to(value.dtype)


def _as_bias(unseen: Tensor | None, query: Tensor) -> Tensor | None:
    """For the memory-efficient kernel, of every head, in rows that begin at a multiple of ALIGNED elements."""
    if unseen is None:
        return None
    num_keys = unseen.size(1)
    padded = functional.pad(unseen, (0, -num_keys % ALIGNED))[:, :num_keys]
    return padded.expand(query.size(0), query.size(1), -1, -1)


def _has_flash(query: Tensor, value: Tensor) -> bool:
    # Values that are shorter than queries are taken by the memory-efficient kernel alone.
    return value.size(-1) == query.size(-1) and takes_groups(query.device, query.element_size(), query.size(-1))


def _repeat_groups(heads: Tensor, query: Tensor) -> Tensor:
    """A key or value for every query head, for the kernel that takes no groups."""
    return heads.repeat_interleave(query.size(1) // heads.size(1), dim=1)


def _no_randomness(query: Tensor) -> tuple[Tensor, Tensor]:
    """Seed and offset of the random numbers that a kernel which drops nothing does not draw."""
    nothing = query.new_zeros(2, dtype=torch.int64)
    return nothing, nothing


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
        self.projection: nn.Module = nn.Linear(spec.attended_size, spec.hidden_size, bias=False)
        self.dropout: nn.Module = PlaceForDropout()

    def forward(self, x: Tensor, rotary: Tensor, documents: Documents | None = None) -> Tensor:
        query, pair, key = self.down(x).split(self.short_sizes, dim=-1)
        query = self.query_up(x if self.short_query_norm is None else self.short_query_norm(query))
        pairs, key = self.pair_up(self.short_pair_norm(pair)), self.shared_key(key)
        heads = join_heads(query, pairs, key, (self.head_size, self.value_size), rotary)
        return self.dropout(self.projection(self.core(*heads, documents=documents)))


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
    of_query, ends = query.unflatten(-1, (-1, d)).split([d - r, r], dim=-1)
    of_key, value = pairs.unflatten(-1, (-1, d - r + v)).split([d - r, v], dim=-1)
    turned = torch.cat((of_query, turn_heads(ends[:, :, None], table)[:, :, 0]), dim=-1)
    # Turned before it is expanded, so that backward the gradients of all heads are summed before they are turned.
    of_all_keys = turn_heads(shared[:, :, None, None], table)[:, :, 0]
    key = torch.cat((of_key, of_all_keys.expand(*of_key.shape[:-1], -1)), dim=-1)
    return tuple(heads.permute(1, 2, 0, 3) for heads in (turned, key, value.contiguous()))
