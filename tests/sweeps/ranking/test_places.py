"""The places of points by the bounds of what they measured, and what they take of thousands."""

from __future__ import annotations

from random import Random

import pytest

from sweeps.ranking.intervals import places_by_bounds

Bounds = tuple[float, float]
MOST_COMPARISONS = 200
"""For each point, of 2,000."""


def as_defined(bounds: list[Bounds]) -> list[str]:
    """Round by round: the first that has no place yet takes all along that may be as good."""
    places, left = dict[int, str](), list(range(len(bounds)))
    while left:
        low, high = bounds[left[0]]
        alike = [each for each in left if bounds[each][0] <= high and bounds[each][1] >= low]
        places |= dict.fromkeys(alike, str(left[0] + 1))
        left = [each for each in left if each not in alike]
    rivals = [sum(low <= above and high >= below for low, high in bounds) - 1 for below, above in bounds]
    return [places[number] + ("=" if rivals[number] else "") for number in range(len(bounds))]


@pytest.mark.parametrize("width", [0, 1, 3, 12, 60])
def test_many_points_have_the_places_that_are_defined(width: int) -> None:
    draw = Random(width)
    for _ in range(100):
        lows = [float(draw.randint(0, 60)) for _ in range(draw.randint(1, 30))]
        bounds = [(low, low + draw.randint(0, width)) for low in lows]
        bounds.sort(key=lambda each: -each[0] - each[1])
        assert places_by_bounds(bounds) == as_defined(bounds)
        draw.shuffle(bounds)
        assert places_by_bounds(bounds) == as_defined(bounds)


def test_thousands_of_points_are_not_each_compared_with_every_other() -> None:
    made = 0

    class Counted(float):
        """A number that counts how often it is compared."""

        def __lt__(self, other: float) -> bool:
            nonlocal made
            made += 1
            return float(self) < float(other)

        def __le__(self, other: float) -> bool:
            nonlocal made
            made += 1
            return float(self) <= float(other)

    bounds = [(Counted(-number), Counted(-number)) for number in range(2000)]
    assert places_by_bounds(bounds) == [str(number) for number in range(1, 2001)]
    assert made < MOST_COMPARISONS * len(bounds)
