"""What a person may have meant by a word that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

MOST_SHOWN = 20
CUTOFF, MOST_LOOKED_AT = 0.5, 20


def nearest(word: str, known: Sequence[str]) -> str:
    """A remedy: the known word that is most like this one, or else those that there are."""
    if (meant := most_like(word, known)) is not None:
        return f"Did you mean {meant}?"
    names = [name for name in dict.fromkeys(known) if "." not in name] or list(dict.fromkeys(known))
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return f"Known: {', '.join(names[:MOST_SHOWN])}{more}."


def most_like(word: str, known: Sequence[str]) -> str | None:
    """The known word that a person may have meant; None where none is much like this one."""
    alike = difflib.get_close_matches(word, dict.fromkeys(known), n=MOST_LOOKED_AT, cutoff=CUTOFF)
    return max(alike, key=lambda found: _likeness(word, found), default=None)


def _likeness(word: str, found: str) -> float:
    """How much alike two dotted keys are: a long group that is right must not hide that its key is another."""
    (group, _, key), (other_group, _, other_key) = word.rpartition("."), found.rpartition(".")
    parts = {part for part in key.split("_") if part}
    all_said = parts <= {*other_key.split("_")}  # tensor_size for tensor_parallel_size
    return _ratio(key, other_key) + _ratio(group, other_group) + (1.0 if all_said else 0.0)


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio() if one or other else 1.0
