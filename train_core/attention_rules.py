"""The kernel that computes attention on a GPU, as far as it decides what a layer keeps. No torch.

The trainer repeats keys and values by this rule, and the cost model counts the bytes of that.

    flash kernel              takes the keys and values of groups as they are, one for several query heads
    memory-efficient kernel   wants as many as there are query heads, so that they are repeated before it
    neither                   torch would store all scores, which the trainer never lets it do for the sake of groups
"""

from __future__ import annotations

HALF_BYTES = 2
LARGEST_FLASH_HEAD = 192
"""The largest head whose backward pass the flash kernel has on every generation; most have it up to 256."""


def flash_runs(element_bytes: int, head_size: int, *, has_bf16: bool) -> bool:
    """True if a GPU computes attention by the flash kernel.

    Args:
        element_bytes: of queries, keys and values: 2 for fp16 and bf16, 4 for fp32.
        has_bf16: the GPU multiplies bf16. NVIDIA's do from Ampere on, and the kernel was written for these; it was
            written for AMD's that do so too.

    Source: `can_use_flash_attention` and `can_use_mem_efficient_attention` in
    aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of torch. The latter kernel takes groups in recent releases of
    torch and not on AMD, so that it is not relied on.
    """
    return element_bytes == HALF_BYTES and head_size <= LARGEST_FLASH_HEAD and has_bf16
