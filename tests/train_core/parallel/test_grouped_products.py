"""One kernel multiplies the rows of all experts as a product for each does; which, torch tells where it has one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from train_core.parallel import expert_parallel
from train_core.parallel.expert_parallel import Groups, grouped_product, takes_groups_of

SIZES = [4, 0, 6]


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this release of torch has no grouped products")
@pytest.mark.parametrize("transposed", [False, True])
def test_a_grouped_product_is_one_of_each_expert(transposed: bool) -> None:
    """By torch's own form of the kernel for a CPU."""
    torch.manual_seed(0)
    weight, counts = torch.randn(3 * 24, 16, dtype=torch.bfloat16), torch.tensor(SIZES)
    rows = torch.randn(10, 16 if transposed else 24, dtype=torch.bfloat16)
    matrices = weight.view(3, 24, 16).transpose(1, 2) if transposed else weight.view(3, 24, 16)
    apart = expert_parallel._each_product(rows, weight, Groups(SIZES, counts), None, transposed=transposed)
    torch.testing.assert_close(grouped_product(rows, matrices, counts), apart)


def test_matrices_that_the_kernel_does_not_take_are_multiplied_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_parallel, "_has_grouped_products", lambda dtype, device: True)
    assert takes_groups_of(torch.empty(2, 16, 8, dtype=torch.bfloat16))
    assert not takes_groups_of(torch.empty(2, 16, 6, dtype=torch.bfloat16)), "rows of 12 bytes"


@pytest.mark.parametrize(
    ("capability", "hip", "dtype"),
    [
        ((8, 0), None, torch.bfloat16),
        ((8, 9), None, torch.bfloat16),
        ((9, 4), "6.2", torch.bfloat16),
        ((9, 0), None, torch.float16),
    ],
)
def test_where_the_function_would_make_the_host_wait_for_sizes_that_it_knows_each_is_multiplied_apart(
    capability: tuple[int, int], hip: str | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there on every device, and only Hopper and Blackwell have a kernel of their own, for bf16."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert not expert_parallel._has_grouped_products.__wrapped__(dtype, torch.device("cuda", 0))


def test_a_device_without_such_a_kernel_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("not implemented for this device")

    monkeypatch.setattr(torch, "_grouped_mm", refuse, raising=False)
    expert_parallel._has_grouped_products.cache_clear()
    assert not takes_groups_of(torch.empty(2, 16, 16, dtype=torch.bfloat16))
    expert_parallel._has_grouped_products.cache_clear()
