"""`training.deterministic`: every run of a layout on the same devices and software comes to the same bits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import deterministic

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED = ":4096:8"
"""Eight buffers of 4 MiB. cuBLAS else shares its memory out among streams as they come, and sums in other orders.

Source: cuBLAS documentation, "Results reproducibility".
"""


@contextmanager
def same_bits(is_wanted: bool) -> Iterator[None]:
    """Inside the block torch takes deterministic kernels, where that is wanted, and refuses operations without one.

    To be entered before the first product on a GPU, after which cuBLAS no longer looks at its variable. CPUs compute
    the same with and without.
    """
    if not is_wanted:
        yield
        return
    os.environ.setdefault(CUBLAS_WORKSPACE, FIXED)
    memory: Any = deterministic  # has its setting only since it was imported, which mypy does not see
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # Filling would be a pass over every new tensor, for those who read what they have not written.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        memory.fill_uninitialized_memory = fills
