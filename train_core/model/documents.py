"""Documents that sequences are packed from, where attention and positions stay inside each.

    tokens      | a b c d e | f g | h i j |     a sequence of three documents
    numbers     | 4 4 4 4 4 | 5 5 | 6 6 6 |     each token's document, counted over the whole stream
    positions   | 0 1 2 3 4 | 0 1 | 0 1 2 |     a document that began in an earlier sequence begins here anew

Shapes: s sequence, b micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Spans: TypeAlias = tuple[dict[int, slice], ...]
"""Of each sequence the documents by number, and where the tokens of each lie in it."""


@dataclass(frozen=True, eq=False)
class Documents:
    """The documents of a micro-batch.

    Attributes:
        numbers: each token's document (s, b), on the host.
        positions: each token's position in its document (s, b), on the device.
        spans: the documents of every rank that shares out the sequences' tokens, among its own; of one rank without.
        on_device: brings values to the device.
        bounds: where each document begins, and the last ends, of all sequences laid end to end; on the device.
    """

    numbers: NDArray[np.int64]
    positions: Tensor
    spans: tuple[Spans, ...]
    on_device: Callable[[NDArray[Any]], Tensor]
    bounds: Tensor | None = None

    @classmethod
    def of(cls, numbers: NDArray[np.int64], on_device: Callable[[NDArray[Any]], Tensor]) -> Documents:
        spans = spans_of(numbers)
        bounds = np.array([0, *accumulate(lengths_of(spans))], dtype=np.int32)
        return cls(numbers, on_device(_positions(spans)), (spans,), on_device, on_device(bounds))

    @property
    def longest(self) -> int:
        return max(lengths_of(self.spans[0]))

    @cached_property
    def mask(self) -> Tensor:
        """The keys that each query sees (b, 1, s, s); made once for all layers."""
        numbers = self.on_device(np.ascontiguousarray(self.numbers.T))
        return (numbers[:, :, None] == numbers[:, None, :]).tril()[:, None]


def spans_of(numbers: NDArray[np.int64]) -> Spans:
    """Where each document lies in each sequence; a document's tokens stand together, in any rank's part of them."""
    of_sequences = []
    for column in numbers.T:
        starts = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist()]
        ends = [*starts[1:], len(column)]
        of_sequences.append(dict(zip(column[starts].tolist(), map(slice, starts, ends), strict=True)))
    return tuple(of_sequences)


def lengths_of(spans: Spans) -> list[int]:
    return [span.stop - span.start for of_sequence in spans for span in of_sequence.values()]


def _positions(spans: Spans) -> NDArray[np.int64]:
    of_sequences = (np.concatenate([np.arange(length) for length in lengths_of((each,))]) for each in spans)
    return np.stack(list(of_sequences), axis=1)
