"""Values near a wrong one that would be right, for the last sentence of an error."""

from __future__ import annotations

import math
from collections.abc import Iterable

VOCABULARY_MULTIPLE = 128
"""Rows of an embedding are padded to this many. Source: Megatron-LM, --make-vocab-size-divisible-by."""


def next_multiple(value: int, of: int) -> int:
    """The smallest multiple that is not below `value`."""
    return -(-value // of) * of


def nearest_divisor(value: int, of: int) -> int:
    """The divisor that is closest to `value`, the smaller one of two."""
    small = [divisor for divisor in range(1, math.isqrt(of) + 1) if of % divisor == 0]
    divisors = small + [of // divisor for divisor in small]
    return min(divisors, key=lambda divisor: (abs(divisor - value), divisor))


def largest_share(values: Iterable[int], below: int) -> int:
    """The largest number below a bound that divides all values."""
    common = math.gcd(*values)
    return next(size for size in range(below - 1, 0, -1) if common % size == 0)


def padded_vocabulary(num_rows: int, tensor_parallel_size: int) -> int:
    """Rows that suit matrix units and that every tensor rank can take an equal share of."""
    return next_multiple(num_rows, math.lcm(VOCABULARY_MULTIPLE, tensor_parallel_size))
