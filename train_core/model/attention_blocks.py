"""Causal attention of queries to some of the keys, by a device's kernels, with what merges it with that to others.

    block_output        of one block, and its log-sum-exp; `block_gradients` its summands of the gradients
    add_sinks           one more score of each head, beside those of the keys, without a value (gpt-oss)

Shapes: s sequence, b micro-batch, d head size, v head size of values, n queries and m keys of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from costs.shared_rules import flash_runs

aten = torch.ops.aten

ALIGNED = 32
"""The memory-efficient kernel writes the log-sum-exp of a multiple of so many queries."""

HEAD_MULTIPLE = 8
"""A GPU's fused kernels take heads whose size is a multiple of so many; torch's own function pads them as well."""

AMPERE = (8, 0)
"""The capability, as torch tells it, of the first GPUs of NVIDIA that multiply bf16."""


def near_mask(queries: Tensor, keys: Tensor, window: int) -> Tensor:
    """The keys (m) that each query (n) sees, by the places of both in a sequence: (n, m), true where it does."""
    distance = queries[:, None] - keys
    return (distance >= 0) & (distance < window)


def takes_groups(gpu: torch.device, element_bytes: int, head_size: int) -> bool:
    """True if a GPU's kernel for these heads takes fewer keys and values than queries; asks the driver."""
    has_bf16 = torch.version.hip is not None or torch.cuda.get_device_capability(gpu) >= AMPERE
    return flash_runs(element_bytes, head_size, has_bf16=has_bf16)


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


class BlockMask(NamedTuple):
    """Which keys of a block its queries see, and how: all of them, or as follows.

    Attributes:
        is_causal: a query sees those up to its own place in the block.
        unseen: UNSEEN (n, m) where a query does not see a key, and else 0.
        cap: as that of `causal_attention`, for which kernels have no place: see `_CappedRows`.
    """

    is_causal: bool = False
    unseen: Tensor | None = None
    cap: float | None = None


class Attended(NamedTuple):
    """What a block's gradients follow from: of queries over all keys that they see, those of other blocks included."""

    grad_out: Tensor
    query: Tensor
    out: Tensor
    log_sum_exp: Tensor
    key: Tensor
    value: Tensor


UNSEEN = -3e4
"""What is added to the score of a key that a query does not see. Its exponential is 0 beside that of one which is seen,
in every type, and a query of a block without any of these keeps a finite log-sum-exp."""


def unseen_of(seen: Tensor, like: Tensor) -> Tensor:
    """What `block_output` takes for the keys (m) that each query (n) sees: (n, m), true where it does."""
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(~seen, UNSEEN)


def block_output(query: Tensor, key: Tensor, value: Tensor, seen: BlockMask) -> tuple[Tensor, Tensor]:
    """One block by a device's fused kernel: queries (b, heads, n, d), keys (b, groups, m, d), values (b, groups, m, v).

    torch's `scaled_dot_product_attention` hands out neither the log-sum-exp, by which blocks are merged, nor gradients
    that follow from one over more keys than the block's, so that its kernels are called by their own names. v <= d.

    Returns:
        The output (b, heads, n, v), and the log-sum-exp (b, heads, n).
    """
    if seen.cap is not None:
        return _capped_output(query, key, value, seen, seen.cap)
    if query.is_cuda:
        return _gpu_output(query, key, value, seen)
    # The kernel takes values as wide as keys alone; narrower ones are padded for it.
    is_short = value.size(-1) < query.size(-1)
    padded = as_wide(value, query) if is_short else value
    out, log_sum_exp = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, padded, 0.0, seen.is_causal, attn_mask=seen.unseen
    )
    return as_narrow(out, value) if is_short else out, log_sum_exp


def _gpu_output(query: Tensor, key: Tensor, value: Tensor, seen: BlockMask) -> tuple[Tensor, Tensor]:
    value_size, scale = value.size(-1), query.size(-1) ** -0.5
    has_flash = seen.unseen is None and takes_flash(query, value)
    query, key, value = map(in_eights, (query, key, value))
    if has_flash:
        out, log_sum_exp, *_ = aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, seen.is_causal, scale=scale
        )
    else:
        key, value = (repeat_groups(heads, query) for heads in (key, value))
        # True asks for the log-sum-exp, which the kernel leaves out otherwise.
        out, log_sum_exp, *_ = aten._scaled_dot_product_efficient_attention(
            query, key, value, _as_bias(seen.unseen, query), True, 0.0, seen.is_causal, scale=scale
        )
    # Without the queries by which the memory-efficient kernel rounds up.
    return out[..., :value_size], log_sum_exp[:, :, : query.size(2)]


def block_gradients(attended: Attended, seen: BlockMask) -> tuple[Tensor, Tensor, Tensor]:
    """The block's summands of the gradients of queries, keys and values."""
    grad_out, query, out, log_sum_exp, key, value = attended
    if seen.cap is not None:
        return _capped_gradients(attended, seen, seen.cap)
    if query.is_cuda:
        return _gpu_gradients(attended, seen)
    is_short = value.size(-1) < query.size(-1)
    wide = [as_wide(each, query) if is_short else each for each in (grad_out, value, out)]
    of_query, of_key, of_value = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        wide[0], query, key, *wide[1:], log_sum_exp, 0.0, seen.is_causal, attn_mask=seen.unseen
    )
    return of_query, of_key, as_narrow(of_value, value) if is_short else of_value


def _gpu_gradients(attended: Attended, seen: BlockMask) -> tuple[Tensor, Tensor, Tensor]:
    grad_out, query, out, log_sum_exp, key, value = attended
    head_size, value_size, is_causal = query.size(-1), value.size(-1), seen.is_causal
    has_flash, scale = seen.unseen is None and takes_flash(query, value), head_size**-0.5
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
        key, value = (repeat_groups(heads, query) for heads in (key, value))
        # exp(score - inf) is 0, so that queries which do not exist give keys and values no gradient.
        padded = functional.pad(log_sum_exp, (0, padding), value=torch.inf)
        of_query, *of_pairs, _ = aten._scaled_dot_product_efficient_attention_backward(
            *(grad_out, query, key, value, _as_bias(seen.unseen, query), out, padded, *_no_randomness(query)),
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


def _capped_rows(query: Tensor, key: Tensor, seen: BlockMask, cap: float) -> Iterator[_CappedRows]:
    is_causal, hidden = seen.is_causal, seen.unseen
    wide = torch.promote_types(query.dtype, torch.float32)
    places = torch.arange(key.size(2), device=key.device)
    for start in range(0, query.size(2), ROWS):
        rows = slice(start, min(start + ROWS, query.size(2)))
        # Of a causal block nobody sees the keys behind these queries.
        some, keys = _of_groups(query, rows, key.size(1)), key[:, :, : rows.stop] if is_causal else key
        scores = (some @ keys.transpose(-1, -2)).to(wide).mul_(query.size(-1) ** -0.5 / cap).tanh_().mul_(cap)
        if is_causal or hidden is not None:
            of_rows = unseen_of(places[rows, None] >= places[: rows.stop], query) if hidden is None else hidden[rows]
            scores.unflatten(2, (-1, of_rows.size(0))).add_(of_rows)
        yield _CappedRows(rows, some, scores)


def _capped_output(query: Tensor, key: Tensor, value: Tensor, seen: BlockMask, cap: float) -> tuple[Tensor, Tensor]:
    outs, sums = [], []
    for rows, _, scores in _capped_rows(query, key, seen, cap):
        of_heads = (query.size(0), query.size(1), rows.stop - rows.start)
        log_sum_exp = scores.logsumexp(-1, keepdim=True)
        weights = scores.sub_(log_sum_exp).exp_().to(value.dtype)
        outs.append((weights @ value[:, :, : weights.size(-1)]).reshape(*of_heads, value.size(-1)))
        sums.append(log_sum_exp.reshape(of_heads))
    return torch.cat(outs, dim=2), torch.cat(sums, dim=2)


def _capped_gradients(attended: Attended, seen: BlockMask, cap: float) -> tuple[Tensor, Tensor, Tensor]:
    grad_out, query, out, log_sum_exp, key, value = attended
    groups, of_query = key.size(1), torch.empty_like(query)
    of_key, of_value = (torch.zeros_like(each, dtype=log_sum_exp.dtype) for each in (key, value))
    # What a query's weights have in common moves nothing, as they add up to one.
    common = (grad_out * out).sum(-1, keepdim=True, dtype=log_sum_exp.dtype)
    for rows, some, scores in _capped_rows(query, key, seen, cap):
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


def takes_flash(query: Tensor, value: Tensor) -> bool:
    # Values that are shorter than queries are taken by the memory-efficient kernel alone.
    return value.size(-1) == query.size(-1) and takes_groups(query.device, query.element_size(), query.size(-1))


def repeat_groups(heads: Tensor, query: Tensor) -> Tensor:
    """A key or value for every query head, for the kernel that takes no groups."""
    return heads.repeat_interleave(query.size(1) // heads.size(1), dim=1)


def _no_randomness(query: Tensor) -> tuple[Tensor, Tensor]:
    """Seed and offset of the random numbers that a kernel which drops nothing does not draw."""
    nothing = query.new_zeros(2, dtype=torch.int64)
    return nothing, nothing
