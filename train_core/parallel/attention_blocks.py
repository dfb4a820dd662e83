"""A block of attention by a device's fused kernel, with what it takes to merge blocks and to differentiate them.

torch's `scaled_dot_product_attention` hands out neither the log-sum-exp of the scores nor gradients that follow from
one over more keys than the block's, so that its kernels are called here by their own names.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from train_core.model.elementwise import as_narrow, as_wide
from train_core.model.transformer import takes_groups

aten = torch.ops.aten
ALIGNED = 32
"""The memory-efficient kernel writes the log-sum-exp of a multiple of so many queries."""


def block_output(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Queries (b, heads, n, d), keys (b, groups, m, d) and values (b, groups, m, v), of which v is at most d.

    Returns:
        The output (b, heads, n, v), and the log-sum-exp (b, heads, n).
    """
    is_short = value.size(-1) < query.size(-1)
    if not query.is_cuda and is_short:
        out, log_sum_exp = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, as_wide(value, query), 0.0, is_causal
        )
        return as_narrow(out, value), log_sum_exp
    if not query.is_cuda:
        out, log_sum_exp = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal)
    elif not is_short and takes_groups(query.device, query.element_size(), query.size(-1)):
        out, log_sum_exp, *_ = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal)
    else:
        key, value = (_repeat_groups(heads, query) for heads in (key, value))
        # There is no bias. True asks for the log-sum-exp, which the kernel leaves out otherwise.
        out, log_sum_exp, *_ = aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, is_causal
        )
    # Without the queries by which the memory-efficient kernel rounds up.
    return out, log_sum_exp[:, :, : query.size(2)]


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
    is_short = value.size(-1) < query.size(-1)  # which of a GPU's kernels the memory-efficient one alone takes
    if not query.is_cuda and is_short:
        wide_grad, padded, wide_out = (as_wide(narrow, query) for narrow in (grad_out, value, out))
        of_query, of_key, of_value = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            wide_grad, query, key, padded, wide_out, log_sum_exp, 0.0, is_causal
        )
        return of_query, of_key, as_narrow(of_value, value)
    if not query.is_cuda:
        grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, query, key, value, out, log_sum_exp, 0.0, is_causal
        )
    elif not is_short and takes_groups(query.device, query.element_size(), query.size(-1)):
        grads = aten._scaled_dot_product_flash_attention_backward(
            # The kernel takes no strides for the log-sum-exp, and of some of the queries it is not contiguous. The two
            # None are the ends of packed sequences, of which there are none.
            *(grad_out, query, key, value, out, log_sum_exp.contiguous(), None, None, query.size(2), key.size(2)),
            *(0.0, is_causal, *_no_randomness(query)),
        )
    else:
        num_groups, padding = key.size(1), -query.size(2) % ALIGNED
        key, value = (_repeat_groups(heads, query) for heads in (key, value))
        # exp(score - inf) is 0, so that queries which do not exist give keys and values no gradient.
        padded = functional.pad(log_sum_exp, (0, padding), value=torch.inf)
        of_query, *of_pairs, _ = aten._scaled_dot_product_efficient_attention_backward(
            *(grad_out, query, key, value, None, out, padded, *_no_randomness(query)),
            *(0.0, [True, True, True, False], is_causal),
        )
        # The query heads of a group have one key and one value, whose gradient is the sum over them.
        grads = (of_query, *(grad.unflatten(1, (num_groups, -1)).sum(2) for grad in of_pairs))
    of_query, of_key, of_value = grads
    return of_query, of_key, of_value


def _repeat_groups(heads: Tensor, query: Tensor) -> Tensor:
    """A key or value for every query head, for the kernel that takes no groups."""
    return heads.repeat_interleave(query.size(1) // heads.size(1), dim=1)


def _no_randomness(query: Tensor) -> tuple[Tensor, Tensor]:
    """Seed and offset of the random numbers that a kernel which drops nothing does not draw."""
    nothing = query.new_zeros(2, dtype=torch.int64)
    return nothing, nothing
