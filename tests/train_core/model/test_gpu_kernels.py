"""Which of torch's operations a GPU is given, seen on fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from train_core.model import attention, elementwise
from train_core.model.attention import CausalAttention, attend_packed


@pytest.fixture(autouse=True)
def fake_tensors() -> Iterator[None]:
    with FakeTensorMode():
        yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Arguments of attention and norm, in the order of the calls."""
    seen: list[tuple[Any, ...]] = []

    def record(*arguments: Any, **options: Any) -> Tensor:
        seen.append((*arguments, options))
        return arguments[0]

    for name in ("scaled_dot_product_attention", "rms_norm"):
        monkeypatch.setattr(functional, name, record)
    return seen


AMPERE, VOLTA = (8, 0), (7, 0)


@pytest.mark.parametrize(
    ("device", "capability", "dtype", "num_heads"),
    [
        ("cuda", AMPERE, torch.float32, 8),
        ("cuda", AMPERE, torch.bfloat16, 2),
        ("cuda", AMPERE, torch.float16, 2),
        ("cuda", VOLTA, torch.float16, 8),
        ("cuda", VOLTA, torch.float32, 8),
        ("cpu", VOLTA, torch.float32, 2),
    ],
)
def test_keys_and_values_of_groups_are_repeated_where_no_fused_kernel_takes_groups(
    calls: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    capability: tuple[int, int],
    dtype: torch.dtype,
    num_heads: int,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    query, key, value = (torch.empty(1, heads, 16, 4, device=device, dtype=dtype) for heads in (8, 2, 2))
    CausalAttention()(query, key, value)
    ((_, key, value, options),) = calls
    assert key.size(1) == value.size(1) == num_heads
    assert options["enable_gqa"] == (num_heads < 8)


def test_on_amd_the_flash_kernel_takes_the_groups_of_both_halves(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        CausalAttention()(*(torch.empty(1, heads, 16, 4, device="cuda", dtype=dtype) for heads in (8, 2, 2)))
    assert [key.size(1) for _, key, _, _ in calls] == [2, 2, 8]


@pytest.mark.parametrize("has_kernel", [True, False])
def test_a_gpus_norm_is_torchs_where_that_is_one_kernel(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, has_kernel: bool
) -> None:
    monkeypatch.setattr(elementwise, "HAS_FUSED_RMS_NORM", has_kernel)
    x, weight = torch.empty(4, 2, 8, device="cuda"), torch.empty(8, device="cuda")
    assert elementwise.rms_norm(x, weight, 1e-5).shape == x.shape
    assert len(calls) == has_kernel


def test_the_flash_kernel_takes_a_window_of_whole_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def forward(query: Tensor, key: Tensor, value: Tensor, *bounds: Any, **options: Any) -> tuple[Tensor]:
        given.extend((bounds, options))
        return (query,)

    monkeypatch.setattr(attention, "aten", SimpleNamespace(_flash_attention_forward=forward))
    query, key, value = (torch.empty(2, heads, 16, 8, dtype=torch.bfloat16) for heads in (8, 2, 2))
    assert attend_packed(query, key, value, 0.0, None, 4).shape == query.shape
    (starts, _, *longest), options = given[0], given[1]
    assert tuple(starts.shape) == (3,)
    assert longest[:2] == [16, 16]
    assert (options["window_size_left"], options["window_size_right"]) == (3, 0)
    arguments = torch.ops.aten._flash_attention_forward.default._schema.arguments
    assert options.keys() <= {argument.name for argument in arguments}, "this torch's kernel has no such options"
