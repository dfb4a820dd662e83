"""A permutation of 0 .. n-1 that is computed index by index: an epoch over any number of sequences takes no memory.

A balanced Feistel network permutes the smallest square of a power of two that holds n; an index that it moves to n or
above is moved on until it is below, which keeps it a permutation (cycle walking).
Source: Luby and Rackoff 1988 (the network); Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", section 3.
"""

from __future__ import annotations

from functools import lru_cache

NUM_ROUNDS = 4  # with these, Luby and Rackoff's network is a strong pseudorandom permutation
WORD = 2**64 - 1


def permuted(index: int, size: int, seed: int) -> int:
    """The place to which the permutation of 0 .. size-1 that `seed` names moves `index`."""
    assert 0 <= index < size
    half_bits = ((size - 1).bit_length() + 1) // 2
    # The square is less than four times as large as `size`, so that a few rounds are enough on average.
    while True:
        index = _network(index, half_bits, seed)
        if index < size:
            return index


def _network(index: int, half_bits: int, seed: int) -> int:
    mask = (1 << half_bits) - 1
    left, right = index >> half_bits, index & mask
    for key in _round_keys(seed):
        left, right = right, left ^ (mixed(right + key) & mask)
    return (left << half_bits) | right


@lru_cache(maxsize=2)
def _round_keys(seed: int) -> tuple[int, ...]:
    return tuple(mixed(seed + number) for number in range(NUM_ROUNDS))


def mixed(value: int) -> int:
    """A hash of 64 bits: each depends on every bit of `value`. Source: SplitMix64, Steele et al. 2014."""
    value = (value + 0x9E3779B97F4A7C15) & WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)
