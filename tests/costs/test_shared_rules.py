"""Which GPUs compute attention by the flash kernel."""

from __future__ import annotations

import pytest

from costs.shared_rules import flash_runs


@pytest.mark.parametrize(
    ("element_bytes", "head_size", "has_bf16", "runs"),
    [(2, 128, True, True), (2, 192, True, True), (2, 224, True, False), (4, 128, True, False), (2, 128, False, False)],
    ids=["half", "its largest head", "a larger head", "fp32", "before Ampere"],
)
def test_the_flash_kernel_runs_for_halves_of_moderate_heads_from_ampere_on(
    element_bytes: int, head_size: int, has_bf16: bool, runs: bool
) -> None:
    assert flash_runs(element_bytes, head_size, has_bf16=has_bf16) is runs
