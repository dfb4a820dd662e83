"""Numbers as people read them."""

from __future__ import annotations

import pytest

from conf.units import GIBIBYTE
from results.units import gib


@pytest.mark.parametrize(
    ("value", "shown"),
    [(2000.0, "2,000.0"), (0.294, "0.29"), (0.0034, "0.0034"), (0.00012, "0.00012"), (0.0, "0.00")],
)
def test_memory_that_is_there_is_never_shown_as_nothing(value: float, shown: str) -> None:
    assert gib(value * GIBIBYTE) == shown
