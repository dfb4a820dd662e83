"""A block of attention by a device's fused kernel, with what it takes to merge blocks and to differentiate them.

torch's `scaled_dot_product_attention` hands out neither the log-sum-exp of the scores nor gradients that follow from
one over more keys than the block's, so that its kernels are called here by their own names.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from train_core.model.elementwise import as_narrow, as_wide, in_eights
from train_core.model.transformer import takes_groups

aten = torch.ops.aten
ALIGNED = 32
"""The memory-efficient kernel writes the log-sum-exp of a multiple of so many queries."""


def block_output(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Queries (b, heads, n, d), keys (b, groups, m, d) and values (b, groups, m, v), of which v is at most d.

    Returns:
        The output (b, heads, n, v), and the log-sum-exp (b, heads, n).
    """
    if query.is_cuda:
        return _gpu_output(query, key, value, is_causal=is_causal)
    if value.size(-1) == query.size(-1):
        out, log_sum_exp = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal)
        return out, log_sum_exp
    out, log_sum_exp = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, as_wide(value, query), 0.0, is_causal
    )
    return as_narrow(out, value), log_sum_exp


def _gpu_output(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
    head_size, value_size = query.size(-1), value.size(-1)
    scale = head_size**-0.5
    has_flash = _has_flash(query, value)
    query, key, value = map(in_eights, (query, key, value))
    if has_flash:
        out, log_sum_exp, *_ = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, scale=scale)
    else:
        key, value = (_repeat_groups(heads, query) for heads in (key, value))
        # There is no bias. True asks for the log-sum-exp, which the kernel leaves out otherwise.
        out, log_sum_exp, *_ = aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, is_causal, scale=scale
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
) -> tuple[Tensor, Tensor, Tensor]:
    """The block's summands of the gradients of queries, keys and values.

    Args:
        grad_out, out, log_sum_exp: over all keys that the queries see, those of other blocks included.
    """
    if query.is_cuda:
        return _gpu_gradients(grad_out, query, out, log_sum_exp, key, value, is_causal=is_causal)
    is_short = value.size(-1) < query.size(-1)
    wide = [as_wide(each, query) for each in (grad_out, value, out)] if is_short else [grad_out, value, out]
    of_query, of_key, of_value = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        wide[0], query, key, *wide[1:], log_sum_exp, 0.0, is_causal
    )
    return of_query, of_key, as_narrow(of_value, value) if is_short else of_value


def _gpu_gradients(
    grad_out: Tensor, query: Tensor, out: Tensor, log_sum_exp: Tensor, key: Tensor, value: Tensor, *, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    head_size, value_size, has_flash = query.size(-1), value.size(-1), _has_flash(query, value)
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
            *(grad_out, query, key, value, None, out, padded, *_no_randomness(query)),
            *(0.0, [True, True, True, False], is_causal),
            scale=scale,
        )
        # The query heads of a group have one key and one value, whose gradient is the sum over them.
        grads = (of_query, *(grad.unflatten(1, (num_groups, -1)).sum(2) for grad in of_pairs))
    of_query, of_key, of_value = grads
    return of_query[..., :head_size], of_key[..., :head_size], of_value[..., :value_size]


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
