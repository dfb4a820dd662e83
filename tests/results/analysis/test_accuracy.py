"""Errors of predictions, worked out by hand."""

from __future__ import annotations

import math

import pytest

from results.analysis.accuracy import error_of, error_statistics, rank_correlation, spearman


def test_an_error_is_a_share_of_the_measurement() -> None:
    assert error_of(predicted=1.5, measured=2.0) == -0.25


def test_twice_and_half_cancel_in_the_bias_but_not_in_the_sizes() -> None:
    errors = error_statistics([(2.0, 1.0), (1.0, 2.0), (1.0, 1.0)])
    assert errors is not None
    assert (errors.count, errors.median, errors.mean, errors.worst) == (3, 0.5, 0.5, 1.0)
    assert errors.bias == pytest.approx(0.0)


def test_what_is_not_a_number_or_not_positive_is_left_out() -> None:
    assert error_statistics([(math.nan, 1.0), (1.0, math.inf), (0.0, 1.0)]) is None
    assert rank_correlation([(math.nan, 1.0)] * 5) is None


@pytest.mark.slow
def test_the_same_order_is_one_and_a_swapped_neighbour_costs_a_third() -> None:
    """Of the three pairs of three trials one is in the wrong order: (2 - 1) / 3."""
    same = rank_correlation([(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)])
    swapped = rank_correlation([(1.0, 20.0), (2.0, 10.0), (3.0, 30.0)])
    assert same is not None
    assert swapped is not None
    assert [same.kendall, same.spearman] == pytest.approx([1.0, 1.0])
    assert swapped.kendall == pytest.approx(1 / 3)
    assert swapped.spearman == pytest.approx(0.5)


@pytest.mark.parametrize("pairs", [[], [(1.0, 1.0), (2.0, 2.0)], [(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]])
def test_too_few_trials_or_equal_ones_have_no_order(pairs: list[tuple[float, float]]) -> None:
    assert rank_correlation(pairs) is None


@pytest.mark.parametrize(
    ("left", "right", "correlation"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
        ([1, 1, 2], [5, 6, 7], 0.8660254),
        ([1, 2], [1, 2], None),
        ([1, 1, 1], [1, 2, 3], None),
    ],
)
def test_spearmans_correlation_is_that_of_the_ranks(
    left: list[float], right: list[float], correlation: float | None
) -> None:
    found = spearman(left, right)
    assert found == (None if correlation is None else pytest.approx(correlation))
