"""What a GPU's kernels of attention are given and what is made of their answer; a CPU's kernels stand in for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from train_core.model import attention_blocks
from train_core.model.attention_blocks import UNSEEN, Attended, BlockMask, block_gradients, block_output, near_mask
from train_core.parallel.context_parallel import _merge

aten = torch.ops.aten


def flash(query: Tensor, key: Tensor, value: Tensor, *options: Any, scale: float) -> Any:
    assert query.size(-1) % 8 == 0, "no kernel takes such heads"
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, *options, scale=scale)


def flash_backward(*arguments: Any, scale: float) -> Any:
    tensors, is_causal = arguments[:6], arguments[11]
    assert all(heads.size(-1) % 8 == 0 for heads in tensors[:5]), "no kernel takes such heads"
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(*tensors, 0.0, is_causal, scale=scale)


@pytest.mark.parametrize("head_size", [8, 12])
def test_a_gpus_kernels_get_heads_of_a_multiple_of_eight_and_the_scale_of_the_heads_as_they_are(
    head_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    query, key, value, grad_out = (torch.randn(2, 3, 5, head_size) for _ in range(4))
    out, log_sum_exp = block_output(query, key, value, BlockMask(is_causal=True))
    attended = Attended(grad_out, query, out, log_sum_exp, key, value)
    grads = block_gradients(attended, BlockMask(is_causal=True))
    kernels = {
        "_scaled_dot_product_flash_attention": flash,
        "_scaled_dot_product_flash_attention_backward": flash_backward,
    }
    monkeypatch.setattr(attention_blocks, "aten", SimpleNamespace(**kernels))
    monkeypatch.setattr(attention_blocks, "takes_groups", lambda *_: True)
    gpu_out, gpu_log_sum_exp = attention_blocks._gpu_output(query, key, value, BlockMask(is_causal=True))
    gpu_grads = attention_blocks._gpu_gradients(attended, BlockMask(is_causal=True))
    torch.testing.assert_close((gpu_out, gpu_log_sum_exp, *gpu_grads), (out, log_sum_exp, *grads))


def test_a_query_that_sees_no_key_of_a_block_gets_and_gives_nothing() -> None:
    """A window over six keys in two blocks, of which the first queries see none of the second."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 6, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    places = torch.arange(6)
    is_near = near_mask(places, places, 3)
    scores = (query @ key.transpose(-1, -2) * 8**-0.5).masked_fill(~is_near, -torch.inf)
    expected = scores.softmax(-1) @ value
    grads = torch.autograd.grad(expected, (query, key, value), torch.ones_like(expected))
    unseen = torch.zeros(6, 6, dtype=torch.float64).masked_fill_(~is_near, UNSEEN)
    halves = [slice(3), slice(3, 6)]
    blocks = [
        block_output(query, key[:, :, half], value[:, :, half], BlockMask(unseen=unseen[:, half])) for half in halves
    ]
    merged, log_sum_exp = blocks[0][0].clone().float(), blocks[0][1].clone().float()
    _merge(merged, log_sum_exp, blocks[1][0], blocks[1][1].float())
    torch.testing.assert_close(merged, expected.float())
    of_query = torch.zeros_like(query)
    for half in halves:
        attended = (torch.ones_like(query), query, expected, log_sum_exp.double(), key[:, :, half], value[:, :, half])
        own, of_key, of_value = block_gradients(Attended(*attended), BlockMask(unseen=unseen[:, half]))
        of_query = of_query + own
        torch.testing.assert_close(of_key, grads[1][:, :, half], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(of_value, grads[2][:, :, half], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(of_query, grads[0], rtol=1e-5, atol=1e-6)
