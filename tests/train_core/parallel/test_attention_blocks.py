"""What a GPU's kernels of attention are given and what is made of their answer; a CPU's kernels stand in for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from train_core.model import attention
from train_core.model.attention import block_gradients, block_output

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
    out, log_sum_exp = block_output(query, key, value, is_causal=True)
    grads = block_gradients(grad_out, query, out, log_sum_exp, key, value, is_causal=True)
    kernels = {
        "_scaled_dot_product_flash_attention": flash,
        "_scaled_dot_product_flash_attention_backward": flash_backward,
    }
    monkeypatch.setattr(attention, "aten", SimpleNamespace(**kernels))
    monkeypatch.setattr(attention, "takes_groups", lambda *_: True)
    gpu_out, gpu_log_sum_exp = attention._gpu_output(query, key, value, is_causal=True)
    gpu_grads = attention._gpu_gradients(grad_out, query, out, log_sum_exp, key, value, is_causal=True)
    torch.testing.assert_close((gpu_out, gpu_log_sum_exp, *gpu_grads), (out, log_sum_exp, *grads))
