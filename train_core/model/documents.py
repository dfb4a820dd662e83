"""Documents that sequences are packed from, where attention and positions stay inside each.

    tokens      | a b c d e | f g | h i j |     a sequence of three documents
    numbers     | 4 4 4 4 4 | 5 5 | 6 6 6 |     each token's document, counted over the whole stream
    positions   | 0 1 2 3 4 | 0 1 | 0 1 2 |     a document that began in an earlier sequence begins here anew

Attention goes document by document on a CPU, in one kernel for all where a GPU has one (the flash kernel for sequences
of several lengths), and else over whole sequences, with a mask. Shapes: s sequence, b micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from train_core.model.elementwise import in_eights

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
        bounds = np.array([0, *accumulate(_lengths(spans))], dtype=np.int32)
        return cls(numbers, on_device(_positions(spans)), (spans,), on_device, on_device(bounds))

    @property
    def longest(self) -> int:
        return max(_lengths(self.spans[0]))

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


def _lengths(spans: Spans) -> list[int]:
    return [span.stop - span.start for of_sequence in spans for span in of_sequence.values()]


def _positions(spans: Spans) -> NDArray[np.int64]:
    of_sequences = (np.concatenate([np.arange(length) for length in _lengths((each,))]) for each in spans)
    return np.stack(list(of_sequences), axis=1)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend_separately(attend: Attend, query: Tensor, key: Tensor, value: Tensor, documents: Documents) -> Tensor:
    """Causal attention (b, heads, s, head_size), document by document: as exact as if each were trained alone."""
    outs = []
    # Splits and not slices, whose gradients would be as large as the whole for each document.
    for spans, *heads in zip(documents.spans[0], *(each.split(1) for each in (query, key, value)), strict=True):
        lengths = _lengths((spans,))
        of_documents = zip(*(each.split(lengths, dim=2) for each in heads), strict=True)
        outs.append(torch.cat([attend(*of_document) for of_document in of_documents], dim=2))
    return torch.cat(outs)


def attend_packed(query: Tensor, key: Tensor, value: Tensor, dropout: float, documents: Documents) -> Tensor:
    """The same in one kernel of a GPU, the flash kernel, which takes values as wide as queries."""
    num_sequences, longest, bounds, head_size = query.size(0), documents.longest, documents.bounds, query.size(-1)
    packed = [in_eights(each).transpose(1, 2).flatten(0, 1) for each in (query, key, value)]  # (b s, heads, head_size)
    # Queries and keys have the same bounds. The last two arguments ask for the causal mask, and for no mask of dropout.
    out: Tensor = torch.ops.aten._flash_attention_forward(
        *packed, bounds, bounds, longest, longest, dropout, True, False, scale=head_size**-0.5
    )[0]
    in_sequences: Tensor = out[..., :head_size].unflatten(0, (num_sequences, -1))
    return in_sequences.transpose(1, 2)
