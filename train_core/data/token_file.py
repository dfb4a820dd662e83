"""A file of token ids on disk, whoever wrote it. No torch."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.units import count_of
from train_core.process.lock import wait_for_lock
from train_core.trial.atomic import replacing, stored_values, write_atomically

Ids = NDArray[np.integer]

CHUNK_TOKENS = 2**24
"""The number of ids that are looked at together, so that a file larger than memory can be read through."""


@dataclass(frozen=True)
class TokenFile:
    """The place of the ids, and their number.

    Attributes:
        dtype: the type of the ids in a file without a header; None for a `.npy`, which names it itself.
        documents: the `.npy` file of the first token of every document; None where sequences are not cut into them.
    """

    path: Path
    num_tokens: int
    dtype: str | None = None
    documents: Path | None = None

    @property
    def name(self) -> str:
        """The name of the tokens wherever they lie: a text's file is named by its content, a dataset's by people."""
        return f"{self.path.stem} ({count_of(self.num_tokens, 'token')})"

    def read(self) -> Ids:
        """The ids (num_tokens), memory-mapped; raises OSError where the file is not there, or not on this node."""
        if self.dtype is None:
            return np.load(self.path, mmap_mode="r")
        return np.memmap(self.path, dtype=self.dtype, mode="r", shape=(self.num_tokens,))

    @property
    def has_documents(self) -> bool:
        """True if a sequence may hold more than one document."""
        return self.documents is not None and len(np.load(self.documents, mmap_mode="r")) > 1

    def document_numbers(self) -> DocumentNumbers:
        """The document of every token.

        Raises:
            OSError: as `read`.
        """
        assert self.documents is not None
        return DocumentNumbers(np.load(self.documents, mmap_mode="r"), self.num_tokens)


@dataclass(frozen=True)
class DocumentNumbers:
    """The number of each token's document, which is read like an array but follows from where documents begin."""

    starts: NDArray[np.int64]
    num_tokens: int

    def __len__(self) -> int:
        return self.num_tokens

    def __getitem__(self, tokens: slice) -> NDArray[np.int64]:
        first = np.searchsorted(self.starts, tokens.start, side="right")
        end = np.searchsorted(self.starts, tokens.stop, side="left")
        bounds = np.concatenate(([tokens.start], self.starts[first:end], [tokens.stop]))
        return np.repeat(np.arange(first, end + 1), np.diff(bounds))


def existing_file(path: Path) -> TokenFile | None:
    """A `.npy` file of numbers; None when there is none, or when it is damaged and has to be made again."""
    try:
        return TokenFile(path, len(np.load(path, mmap_mode="r")))
    except (OSError, ValueError, EOFError):
        return None


def write_header(file: BinaryIO, dtype: np.dtype[Any], num_tokens: int) -> None:
    """A header of numpy's, which leaves room for any number, so that it can be written again over itself."""
    header = {"descr": dtype.str, "fortran_order": False, "shape": (num_tokens,)}
    np.lib.format.write_array_header_1_0(file, header)


def with_documents(tokens: TokenFile, starts: NDArray[np.int64], cache_dir: Path) -> TokenFile:
    """The tokens, with a file of where their documents start, which is named by its content and made where it lacks."""
    path = cache_dir / f"documents-{hashlib.sha256(starts.tobytes()).hexdigest()[:16]}.npy"
    if existing_file(path) is None:
        with replacing(path) as file:
            np.save(file, starts)
    return replace(tokens, documents=path)


def remembered(
    path: Path, cache_dir: Path, kind: str, types: Mapping[str, type], find: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What is found in a file. It is read through once in each of its states, as that may take minutes.

    Args:
        kind: begins the name of the note in which it is kept.
        types: of the values that are found; a note that holds others is damaged, and made anew.
    """
    state = path.stat()
    signature = hashlib.sha256(f"{path} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:16]
    sidecar = cache_dir / f"{kind}-{signature}.json"
    with wait_for_lock(sidecar.with_suffix(".lock")):
        known = stored_values(sidecar)
        if all(isinstance(known.get(name), kept) for name, kept in types.items()):
            return known
        found = find()
        write_atomically(sidecar, json.dumps(found))
        return found


class Split(NamedTuple):
    """The number of sequences trained on, from the start of the stream, and of those held out after them."""

    num_training: int
    num_held_out: int


def split(num_tokens: int, seq_length: int, held_out_fraction: float) -> Split:
    """Cut a stream: sequences overlap by one token, the last target of one being the first input of the next."""
    num_sequences = max(0, num_tokens - 1) // seq_length
    num_held_out = math.ceil(num_sequences * held_out_fraction)
    return Split(num_sequences - num_held_out, num_held_out)
