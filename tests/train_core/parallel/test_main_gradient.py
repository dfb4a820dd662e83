"""Gradients are added up without roundings that a device need not make: of products, biases and looked-up tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from train_core.parallel.main_gradient import add_product, add_rows, add_sum, attach
from train_core.parallel.narrow import has_wide_products

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


class WideProducts(TorchDispatchMode):
    """Multiplies narrow matrices into an fp32 one as a GPU does, for a CPU has no such kernel."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.addmm.dtype_out:
            buffer, left, right, *_ = args
            assert kwargs["out"] is buffer
            return buffer.addmm_(left.float(), right.float())
        return func(*args, **(kwargs or {}))


def summed_over_micro_batches(*, is_wide: bool) -> tuple[float, float]:
    """How far the gradients of a weight and of its bias are from those in fp64, after 64 micro-batches in bf16."""
    generator = torch.Generator().manual_seed(1)
    weight, bias = (nn.Parameter(torch.zeros(*shape, dtype=torch.bfloat16)) for shape in ((24, 16), (24,)))
    sums, exact = (torch.zeros(24, 16), torch.zeros(24)), (torch.zeros(24, 16).double(), torch.zeros(24).double())
    for parameter, buffer in zip((weight, bias), sums, strict=True):
        attach(parameter, buffer, Silent(), is_wide=is_wide)
    for _ in range(64):
        grad_out, x = (torch.randn(32, 2, n, generator=generator).bfloat16() for n in (24, 16))
        with WideProducts():  # type: ignore[no-untyped-call]
            assert add_product(weight, grad_out, x) is None
            assert add_sum(bias, grad_out) is None
        exact[0].add_(grad_out.flatten(0, 1).double().T @ x.flatten(0, 1).double())
        exact[1].add_(grad_out.flatten(0, 1).double().sum(0))
    of_weight, of_bias = (
        float((buffer - truth).norm() / truth.norm()) for buffer, truth in zip(sums, exact, strict=True)
    )
    return of_weight, of_bias


def test_a_device_with_wide_products_rounds_no_gradient_to_bf16_before_it_is_summed() -> None:
    assert max(summed_over_micro_batches(is_wide=True)) < 1e-6
    assert min(summed_over_micro_batches(is_wide=False)) > 1e-3


def test_a_cpu_has_no_wide_products() -> None:
    assert not has_wide_products(torch.bfloat16, torch.device("cpu"))
