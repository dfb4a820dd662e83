"""Numbers as people read them."""

from __future__ import annotations

import pytest

from conf.units import GIBIBYTE
from results.units import gib, in_three_digits


@pytest.mark.parametrize(
    ("value", "shown"),
    [(2000.0, "2,000.0"), (0.294, "0.29"), (0.0034, "0.0034"), (0.00012, "0.00012"), (0.0, "0.00")],
)
def test_memory_that_is_there_is_never_shown_as_nothing(value: float, shown: str) -> None:
    assert gib(value * GIBIBYTE) == shown


def test_costs_of_a_whole_training_have_three_digits() -> None:
    shown = [in_three_digits(value) for value in (1234567.0, 1439.03, 27.648, None)]
    assert shown == ["1,230,000", "1,440", "27.6", "-"]
