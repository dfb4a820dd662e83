"""What the cost model says that eager operations read and write is what the trainer's operations do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from costs.kernels import memory_bound_seconds
from costs.layer import experts
from costs.layer.layer_time import PASSES_BYTES, SECTOR_BYTES, anew_seconds, gated_elements, moved_heads_of
from tests.costs.priced import setting_of
from train_core.model.elementwise import SILU, gated_product, turn_heads
from train_core.model.initialize import DTYPES, rotary_table
from train_core.model.mixture import weighted_gated_product
from train_core.parallel.narrow import E4M3, cast, largest_values
from train_core.rehearsal.observer import tensors_of

TOKENS, WIDTH = 64, 96
SETTING = setting_of("mixtral-8x7b", "dgx-h100", trainer="trisweep")


class Moved(TorchDispatchMode):
    """Counts the bytes of large tensors that operations read and write; views move nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes: int = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if not (function.is_view or str(function).startswith(("aten.empty", "aten._unsafe_view"))):
            given = [*tensors_of(args), *tensors_of(out)]  # not those of `out=`, which are written alone
            self.num_bytes += sum(each.nbytes for each in given if each.numel() >= TOKENS * WIDTH // 2)
        return out


def bytes_moved(run: Callable[[], object]) -> int:
    moved = Moved()
    with moved:
        run()
    return moved.num_bytes


def passes_of(function: Callable[[Tensor], Tensor], x: Tensor, elements: int) -> tuple[float, float]:
    """How often each of so many fp32 elements is read or written, forward and backward."""
    x.requires_grad_()
    made: list[Tensor] = []
    forward = bytes_moved(lambda: made.append(function(x)))
    gradient = torch.ones_like(made[0])
    backward = bytes_moved(lambda: torch.autograd.grad(made[0], x, gradient))
    return forward / (4 * elements), backward / (4 * elements)


def test_a_gated_activation() -> None:
    x = torch.rand(TOKENS, 1, 2 * WIDTH)
    assert passes_of(lambda x: gated_product(x, WIDTH, SILU), x, TOKENS * WIDTH) == gated_elements(SETTING)
    fused = replace(SETTING, implementation=SETTING.implementation.in_training(0.0, compiles=True))
    assert gated_elements(fused) == (3, 5)


def test_the_activation_of_experts() -> None:
    weights = torch.rand(TOKENS)
    x = torch.rand(TOKENS, 2 * WIDTH)
    seen = passes_of(lambda x: weighted_gated_product(x, weights), x, TOKENS * WIDTH)
    compiled = replace(SETTING, implementation=SETTING.implementation.in_training(0.0, compiles=True))
    assert seen == experts._activation_elements(SETTING) == experts._activation_elements(compiled)


def test_heads_turned_by_their_positions() -> None:
    heads, size = WIDTH // 8, 8
    table = rotary_table(TOKENS, torch.ones(size // 2))
    forward, backward = passes_of(
        lambda x: turn_heads(x, table), torch.rand(TOKENS, 1, heads, 1, size), TOKENS * heads * size
    )
    model = SETTING.model
    assert forward == backward == moved_heads_of(SETTING) / (model.query_size + model.key_value_size)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_cast_to_fp8(dtype: str) -> None:
    x = torch.rand(TOKENS, WIDTH, dtype=DTYPES[dtype])  # type: ignore[index]
    seen = bytes_moved(lambda: cast(x, largest_values(x), E4M3)) / x.numel()
    # What is fp32 already is not written once more.
    assert seen == (2 * x.element_size() + PASSES_BYTES if dtype == "bf16" else PASSES_BYTES)


def test_a_compiled_cast_reads_twice_and_writes_once_in_either_order() -> None:
    compiled = replace(SETTING, implementation=SETTING.implementation.in_training(0.0, compiles=True))
    seconds = {float(anew_seconds(compiled, *each, 0)) for each in ((1e9, 0.0), (0.0, 1e9))}
    assert seconds == {float(memory_bound_seconds(SETTING, 1e9 * 5, 0))}


def test_a_transposed_copy_reads_a_sector_for_each_byte() -> None:
    plain, transposed = (float(anew_seconds(SETTING, *each, 0)) for each in ((1e9, 0.0), (0.0, 1e9)))
    assert transposed - plain == pytest.approx(float(memory_bound_seconds(SETTING, 1e9 * (SECTOR_BYTES + 1), 0)))
