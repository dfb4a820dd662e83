"""Which set of a mixture a sample is of: shares to within one sample, from any sample on."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train_core.data import blend
from train_core.data.blend import blend_of

WEIGHTS = st.lists(st.integers(1, 60), min_size=1, max_size=9)


@settings(max_examples=200)
@given(weights=WEIGHTS)
def test_after_every_sample_each_set_has_its_share_to_within_less_than_one(weights: list[int]) -> None:
    total, seen = sum(weights), [0] * len(weights)
    mixed = blend_of(tuple(map(float, weights)))
    for sample in range(2 * total):
        chosen, place = mixed.place(sample)
        assert place == seen[chosen], "a set's samples come in their order, none twice"
        seen[chosen] += 1
        assert mixed.counts(sample + 1) == seen
        for count, weight in zip(seen, weights, strict=True):
            assert abs(count - Fraction((sample + 1) * weight, total)) < 1


def test_one_large_and_many_small_sets_are_spread_evenly() -> None:
    mixed = blend_of((0.9, *[0.001] * 100))
    counts = np.array([mixed.counts(number) for number in range(1, 1001)])
    ideal = np.outer(np.arange(1, 1001), [0.9, *[0.001] * 100])
    assert np.abs(counts - ideal).max() < 1


@pytest.mark.parametrize(
    ("weights", "shares"),
    [((0.7, 0.3), (7, 3)), ((70.0, 30.0), (7, 3)), ((1.0,), (1,)), ((1e-3, 1.0), (1, 1000)), ((0.1, 0.2), (1, 2))],
)
def test_weights_count_by_their_ratio_as_it_is_written(weights: tuple[float, ...], shares: tuple[int, ...]) -> None:
    assert blend_of(weights).shares == shares


def test_weights_of_a_long_period_are_rounded_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blend, "LONGEST_PERIOD", 1000)
    assert blend_of((123456789.0, 987654321.0, 0.5)).shares == (111, 889, 1)
