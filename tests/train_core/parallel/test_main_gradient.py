"""Gradients of a table whose rows are looked up many times, where each addition rounds as it does on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from train_core.parallel.main_gradient import add_rows, attach

NUM_ROWS, H = 8, 4


class RoundedAdditions(TorchDispatchMode):
    """`index_add_` one vector after the other in the type of the table, as a GPU's atomic additions do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.index_add_.default:
            table, _, rows, vectors = args
            for row, vector in zip(rows.tolist(), vectors, strict=True):
                table[row] += vector
            return table
        return func(*args, **(kwargs or {}))


class Silent:
    def before_gradient(self) -> None:
        """Nothing."""

    def after_gradient(self) -> None:
        """Nothing."""


def looked_up(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (s, b), of which one is far more frequent than the others and one is missing, vectors, and their sums."""
    rows = torch.randint(NUM_ROWS - 1, (256, 4), generator=torch.Generator().manual_seed(1))
    rows[:, :2] = 3
    vectors = (torch.rand(256, 4, H, generator=torch.Generator().manual_seed(2)) + 0.5).to(dtype)
    sums = torch.zeros(NUM_ROWS, H, dtype=torch.float64).index_add_(0, rows.flatten(), vectors.flatten(0, 1).double())
    return rows, vectors, sums


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_buffer", [True, False])
def test_a_frequent_token_is_rounded_once_in_a_micro_batch(dtype: torch.dtype, has_buffer: bool) -> None:
    rows, vectors, sums = looked_up(dtype)
    weight, buffer = nn.Parameter(torch.zeros(NUM_ROWS, H, dtype=dtype)), torch.zeros(NUM_ROWS, H, dtype=dtype)
    if has_buffer:
        attach(weight, buffer, Silent())
    with RoundedAdditions():  # type: ignore[no-untyped-call]
        gradient = add_rows(weight, vectors, rows)
    assert (gradient is None) == has_buffer
    torch.testing.assert_close(buffer if gradient is None else gradient, sums.to(dtype), rtol=0, atol=0)


def test_a_buffer_in_fp32_is_added_to_over_micro_batches() -> None:
    rows, vectors, sums = looked_up(torch.bfloat16)
    weight, buffer = nn.Parameter(torch.zeros(NUM_ROWS, H, dtype=torch.bfloat16)), torch.zeros(NUM_ROWS, H)
    attach(weight, buffer, Silent())
    for _ in range(2):
        assert add_rows(weight, vectors, rows) is None
    torch.testing.assert_close(buffer, (2 * sums).float(), rtol=1e-5, atol=0)
