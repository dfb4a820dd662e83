"""Whether the layers of a row were compiled."""

from __future__ import annotations

import pytest

from sweeps.table.remarks import with_columns
from sweeps.table.trainer import compiled_or_not
from train_core.costs.trainers import FSDP, TORCHTITAN, TORCHTITAN_COMPILED_LOSS, TORCHTITAN_EAGER


@pytest.mark.parametrize(
    ("cells", "compiled"),
    [
        ({"model": "Llama 3.1 8B FSDP", "notes": "33-39% MFU for bf16 without/with compile"}, False),
        ({"model": "Llama 3.1 8B FSDP+compile"}, True),
        ({"model": "Llama 3.1 8B FSDP", "precision": "fp8"}, True),
        ({"model": "Llama 3.1 70B vanilla TP"}, True),
        ({"notes": "AsyncTP"}, True),
        ({"notes": "torch.compile"}, True),
        ({"notes": "FSDP2 only, no torch.compile"}, False),
        ({"notes": "no torch.compile", "precision": "fp8"}, False),
        ({"notes": "optimizations: none; vanilla TP, no async TP"}, False),
        ({"model": "FSDP+compile", "compile": "no"}, False),
        ({"compile": "yes"}, True),
    ],
)
def test_torchtitan_compiles_where_the_row_says_so_or_what_it_says_needs_it(
    cells: dict[str, str], compiled: bool
) -> None:
    assert (compiled_or_not(with_columns(cells), TORCHTITAN) != TORCHTITAN_EAGER) is compiled


def test_an_eager_row_has_eager_kernels_and_keeps_what_else_it_says() -> None:
    assert compiled_or_not({}, TORCHTITAN) == TORCHTITAN_EAGER
    assert compiled_or_not({"compile": "yes"}, TORCHTITAN) == TORCHTITAN
    without_flash = compiled_or_not({}, TORCHTITAN.model_copy(update={"flash_attention": False}))
    assert without_flash.flash_attention is False


def test_other_trainers_are_as_they_are() -> None:
    assert compiled_or_not({}, FSDP) == FSDP


@pytest.mark.parametrize(
    ("table", "has"),
    [
        ("benchmarks/llama3_h100_202412_torchtitan.md Table 1", False),
        ("benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md", True),
        ("benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md", True),
        ("benchmarks/llama3_2026-01.md", True),
        ("benchmarks/llama3_2025-02.md", False),
    ],
)
def test_the_loss_is_compiled_since_april_2025(table: str, has: bool) -> None:
    expected = TORCHTITAN_COMPILED_LOSS if has else TORCHTITAN
    assert compiled_or_not(with_columns({"table": table, "compile": "yes"}), TORCHTITAN) == expected
