"""Numbers as people read them."""

from __future__ import annotations

import pytest

from conf.plan.knobs import label_of_point
from conf.units import GIBIBYTE, count_of, gain_of
from results.render.units import gib, in_three_digits, signed_percent


@pytest.mark.parametrize(
    ("value", "shown"),
    [(2000.0, "2,000.0"), (0.294, "0.29"), (0.0034, "0.0034"), (0.00012, "0.00012"), (0.0, "0.00")],
)
def test_memory_that_is_there_is_never_shown_as_nothing(value: float, shown: str) -> None:
    assert gib(value * GIBIBYTE) == shown


def test_costs_of_a_whole_training_have_three_digits() -> None:
    shown = [in_three_digits(value) for value in (1234567.0, 1439.03, 27.648, None)]
    assert shown == ["1,230,000", "1,440", "27.6", "-"]


def test_what_rounds_to_nothing_is_no_gain_and_has_no_sign() -> None:
    assert [gain_of(share, "faster") for share in (0.0006, 0.0004, 0.0, -0.1)] == ["0.1% faster", "", "", ""]
    assert [signed_percent(share) for share in (0.0006, -0.0004, None)] == ["+0.1", "0.0", "-"]


def test_one_of_a_kind_is_not_called_several() -> None:
    assert [count_of(number, "trial", "was", "were") for number in (0, 1, 1000)] == [
        "0 trials were",
        "1 trial was",
        "1,000 trials were",
    ]
    assert count_of(1, "device") == "1 device"
    assert label_of_point({"parallel.world_size": 1, "parallel.tensor_parallel_size": 2}) == "tp2 on 1 device"
    assert label_of_point({"parallel.world_size": 2048}) == "on 2048 devices"
