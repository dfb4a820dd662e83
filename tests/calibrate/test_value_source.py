"""The source of constants that several calibrations have set."""

from __future__ import annotations

from calibrate.measured_changes import source_after


def test_a_calibration_says_what_it_set_and_what_the_rest_stands_on() -> None:
    assert source_after("a guess; of mine", ["matmul", "link"], "measured today") == (
        "matmul, link: measured today; before: a guess; of mine"
    )


def test_a_later_calibration_takes_over_the_names_it_sets() -> None:
    once = source_after("guesses", ["matmul", "link"], "measured on Monday")
    twice = source_after(once, ["matmul"], "fitted on Tuesday")
    assert twice == "matmul: fitted on Tuesday; link: measured on Monday; before: guesses"
    assert source_after(twice, ["matmul", "link"], "measured on Friday") == (
        "matmul, link: measured on Friday; before: guesses"
    )
