"""Which timed steps are those of a steady machine."""

from __future__ import annotations

import pytest

from sweeps.ranking.disturbed import DRIFT, TWO_SPEEDS, WIDE, disturbed_runs

QUIET = (0.330, 0.334, 0.329, 0.338, 0.331, 0.335, 0.327)


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (QUIET, ""),
        ((*QUIET[:3], 1.9, *QUIET[3:]), ""),  # one page fault, or one garbage collection
        ((0.33, 0.76, 0.34, 0.75, 0.74, 0.33, 0.76), TWO_SPEEDS),  # seen on a quiet machine, in one of 16 trials
        ((0.33, 0.36, 0.40, 0.43, 0.47, 0.51, 0.56), DRIFT),
        ((0.56, 0.51, 0.47, 0.43, 0.40, 0.36, 0.33), DRIFT),
        ((0.33, 0.76, 0.34, 0.75), ""),  # too few to say
        ((0.33,), ""),
        ((), ""),
    ],
)
def test_a_run_alone(steps: tuple[float, ...], why: str) -> None:
    assert disturbed_runs([steps]) == [why]


def test_a_run_that_spreads_wider_than_the_others() -> None:
    wide = (0.33, 0.45, 0.36, 0.52, 0.40, 0.34, 0.48)
    others = [tuple(factor * seconds for seconds in QUIET) for factor in (1.0, 1.5, 0.7, 2.0)]
    assert disturbed_runs([wide]) == [""]
    assert disturbed_runs([*others, wide]) == ["", "", "", "", WIDE]


def test_a_difference_that_a_quiet_machine_has_disturbs_nothing() -> None:
    """Two speeds without doubt, but 3 % apart: an interval holds that."""
    assert disturbed_runs([(1.0, 1.03, 1.0, 1.03, 1.0, 1.03, 1.03)]) == [""]
