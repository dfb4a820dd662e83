"""Divisors: the sizes that share something out evenly."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt


def divisors(number: int) -> list[int]:
    """All divisors of the number, ascending."""
    return list(_divisors(number))


@lru_cache(maxsize=4096)  # a search asks many times for the divisors of few numbers
def _divisors(number: int) -> tuple[int, ...]:
    small = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return (*small, *(number // size for size in reversed(small) if size * size != number))
