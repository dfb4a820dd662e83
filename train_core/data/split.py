"""The cut of a stream of tokens into sequences, of which the last ones are held out. No torch."""

from __future__ import annotations

import math
from typing import NamedTuple


class Split(NamedTuple):
    """The number of sequences trained on, from the start of the stream, and of those held out after them."""

    num_training: int
    num_held_out: int


def split(num_tokens: int, seq_length: int, held_out_fraction: float) -> Split:
    """Cut a stream: sequences overlap by one token, the last target of one being the first input of the next."""
    num_sequences = max(0, num_tokens - 1) // seq_length
    num_held_out = math.ceil(num_sequences * held_out_fraction)
    return Split(num_sequences - num_held_out, num_held_out)
