"""The last sentence of an error: what a wrong word may have meant, and right values near a wrong number."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence

VOCABULARY_MULTIPLE = 128
"""Rows of an embedding are padded to this many. Source: Megatron-LM, --make-vocab-size-divisible-by."""


def next_multiple(value: int, of: int) -> int:
    """The smallest multiple that is not below `value`."""
    return -(-value // of) * of


def nearest_divisor(value: int, of: int) -> int:
    """The divisor that is closest to `value`, the smaller one of two."""
    start = max(1, min(value, of))
    # Outwards from there, as 1 is never far: to look for all divisors takes long where `of` has digits too many.
    around = ((start - distance, start + distance) for distance in range(start))
    return next(divisor for pair in around for divisor in pair if of % divisor == 0)


def largest_share(values: Iterable[int], below: int) -> int:
    """The largest number below a bound that divides all values."""
    common = math.gcd(*values)
    return next(size for size in range(min(below - 1, common), 0, -1) if common % size == 0)


def padded_vocabulary(num_rows: int, tensor_parallel_size: int) -> int:
    """Rows that suit matrix units and that every tensor rank can take an equal share of."""
    return next_multiple(num_rows, math.lcm(VOCABULARY_MULTIPLE, tensor_parallel_size))


MOST_SHOWN = 20
CUTOFF, LIKE_KEY, MOST_LOOKED_AT = 0.5, 0.45, 20


def nearest(word: str, known: Sequence[str]) -> str:
    """A remedy: the known word that is most like this one, or else those that there are."""
    if (meant := most_like(word, known)) is not None:
        return f"Did you mean {meant}?"
    group = word.rpartition(".")[0]
    inside = [name for name in known if group and name.rpartition(".")[0] == group]
    if inside:
        return _listing([name.rpartition(".")[2] for name in inside], f"Known in {group}")
    return _listing([name for name in known if "." not in name] or known, "Known")


def _listing(names: Sequence[str], opening: str) -> str:
    return f"{opening}: {listed(list(dict.fromkeys(names)), MOST_SHOWN)}."


def listed(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are: `a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def most_like(word: str, known: Sequence[str]) -> str | None:
    """The known word that a person may have meant; None where none is much like this one."""
    if (abbreviated := _by_initials(word, known)) is not None:
        return abbreviated
    alike = difflib.get_close_matches(word, dict.fromkeys(known), n=MOST_LOOKED_AT, cutoff=CUTOFF)
    best = max(alike, key=lambda other: _likeness(word, other), default=None)
    return best if best is not None and _has_like_key(word, best) else None


def _by_initials(word: str, known: Sequence[str]) -> str | None:
    """The shortest key whose words begin with these letters, as those of tensor_parallel_size do with tp."""
    group, _, key = word.rpartition(".")
    names = [
        name
        for name in known
        if "_" in name
        and (not group or name.startswith(f"{group}."))
        and "".join(part[:1] for part in name.rpartition(".")[2].split("_")).startswith(key)
    ]
    # One letter begins too many keys to say that any was meant.
    return min(names, key=len, default=None) if len(key) > 1 else None


def _has_like_key(word: str, name: str) -> bool:
    """True if the keys themselves are alike, and not just the groups before them."""
    key, other = _parted(word)[1], _parted(name)[1]
    return _ratio(key, other) >= LIKE_KEY or _words(key) <= _words(other)


def _likeness(word: str, name: str) -> float:
    """The likeness of two dotted keys: a long group that is right must not hide that its key is another.

    Words that both have, as h100-sxm and dgx-h100 do, tell more than letters: those of h800 are nearer to h100-sxm.
    """
    (group, key), (other_group, other_key) = _parted(word), _parted(name)
    words = _words(key)
    shared = len(words & _words(other_key)) / max(1, len(words))  # tensor_size for tensor_parallel_size
    return _ratio(key, other_key) + _ratio(group, other_group) + shared


def _parted(name: str) -> tuple[str, str]:
    """The groups before a key, and the key: the point of a version, as in llama-3.1-8b, parts nothing."""
    *groups, key = re.split(r"\.(?!\d)", name)
    return ".".join(groups), key


def _words(key: str) -> set[str]:
    return {*filter(None, re.split("[-_]", key))}


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio() if one or other else 1.0
