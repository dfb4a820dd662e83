"""Whether the layers of a row were compiled."""

from __future__ import annotations

import pytest

from costs.trainers import FSDP, TORCHTITAN, TORCHTITAN_COMPILED_LOSS, TORCHTITAN_EAGER
from sweeps.table.trainer import compiled_or_not


@pytest.mark.parametrize(
    ("cells", "compiled"),
    [
        ({}, False),
        ({"precision": "fp8"}, True),
        ({"precision": "fp8", "compile": "no"}, False),
        ({"compile": "yes"}, True),
        ({"notes": "torch.compile"}, False),
    ],
)
def test_torchtitan_compiles_where_the_row_says_so_or_its_precision_needs_it(
    cells: dict[str, str], compiled: bool
) -> None:
    assert (compiled_or_not(cells, TORCHTITAN) != TORCHTITAN_EAGER) is compiled


def test_an_eager_row_has_eager_kernels_and_keeps_what_else_it_says() -> None:
    assert compiled_or_not({}, TORCHTITAN) == TORCHTITAN_EAGER
    assert compiled_or_not({"compile": "yes"}, TORCHTITAN) == TORCHTITAN
    without_flash = compiled_or_not({}, TORCHTITAN.model_copy(update={"flash_attention": False}))
    assert without_flash.flash_attention is False


def test_other_trainers_are_as_they_are() -> None:
    assert compiled_or_not({}, FSDP) == FSDP


@pytest.mark.parametrize(("cells", "has"), [({}, False), ({"compile_loss": "yes"}, True)])
def test_the_loss_is_compiled_where_the_row_says_so(cells: dict[str, str], has: bool) -> None:
    expected = TORCHTITAN_COMPILED_LOSS if has else TORCHTITAN
    assert compiled_or_not({"compile": "yes", **cells}, TORCHTITAN) == expected
