"""A file of token ids on disk, whoever wrote it. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer]


@dataclass(frozen=True)
class TokenFile:
    """The place of the ids, and their number.

    Attributes:
        dtype: the type of the ids in a file without a header; None for a `.npy`, which names it itself.
    """

    path: Path
    num_tokens: int
    dtype: str | None = None

    @property
    def name(self) -> str:
        """The name of the tokens wherever they lie: a text's file is named by its content, a dataset's by people."""
        return f"{self.path.stem} ({self.num_tokens:,} tokens)"

    def read(self) -> Ids:
        """The ids (num_tokens), memory-mapped.

        Raises:
            OSError: the file is not there, or not on this node.
        """
        if self.dtype is None:
            mapped: Ids = np.load(self.path, mmap_mode="r")
            return mapped
        return np.memmap(self.path, dtype=self.dtype, mode="r", shape=(self.num_tokens,))


class Split(NamedTuple):
    """The number of sequences trained on, from the start of the stream, and of those held out after them."""

    num_training: int
    num_held_out: int


def split(num_tokens: int, seq_length: int, held_out_fraction: float) -> Split:
    """Cut a stream: sequences overlap by one token, the last target of one being the first input of the next."""
    num_sequences = max(0, num_tokens - 1) // seq_length
    num_held_out = math.ceil(num_sequences * held_out_fraction)
    return Split(num_sequences - num_held_out, num_held_out)
