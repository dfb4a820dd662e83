"""Megatron-LM's indexed datasets: `PREFIX.bin` holds the ids of all documents in order, `PREFIX.idx` where each starts.

    .idx    b"MMIDIDX\\0\\0", version 1 (u64), code of the ids' type (u8), number of sequences (u64), number of document
            bounds (u64), then each sequence's length (i32) and byte offset (i64), and each document's first sequence
            (i64); little-endian throughout. What may follow (modes of multimodal sequences) is not read.
    Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py, `_IndexWriter`.

Sequences lie in the file without gaps, so that the file is the stream of tokens that training packs. No torch.
"""

from __future__ import annotations

import os
import struct
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.errors import ConfigError
from conf.nearest import padded_vocabulary
from conf.types.model_spec import ModelSpec
from conf.types.schema import DataSpec
from train_core.data.token_file import CHUNK_TOKENS, Ids, TokenFile, remembered

# Magic, version, code of the type, number of sequences, number of bounds of documents.
HEADER = struct.Struct("<9sQBQQ")
MAGIC, VERSION = b"MMIDIDX\0\0", 1
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Types of ids by their code; 6 and 7 are floating-point numbers, which are no ids."""

MOST_IDS = 2**24
"""Far more than any vocabulary has: larger numbers are other bytes than ids, such as two of them read as one."""

WRITE_AGAIN = "Write the dataset again with Megatron-LM's tools/preprocess_data.py, or copy both files again."


class DatasetIndex(NamedTuple):
    """The content of an index.

    Attributes:
        dtype: of the ids.
        lengths: the number of ids of every sequence.
        offsets: the first byte of every sequence.
        bounds: the sequence that begins each document, and the number of all sequences.
    """

    dtype: str
    lengths: Ids
    offsets: Ids
    bounds: Ids


def prepare_indexed(data: DataSpec, model: ModelSpec, cache_dir: Path) -> TokenFile:
    """The dataset's ids, once its index has been held against them and they against the model's vocabulary.

    Raises:
        ConfigError: it is not there or unreadable, not an indexed dataset, truncated, or has ids that the model lacks.
    """
    if data.path is None:
        raise ConfigError(
            "data.path", None, "names no dataset", "Give the path of its two files without .bin and .idx."
        )
    prefix = Path(data.path).expanduser().absolute()
    tokens = _token_file(data, Path(f"{prefix}.idx"), Path(f"{prefix}.bin"))
    _check_ids(data, model, tokens, cache_dir)
    return tokens


def _token_file(data: DataSpec, index: Path, ids: Path) -> TokenFile:
    try:
        content = np.memmap(index, mode="r") if index.stat().st_size else np.empty(0, np.uint8)
        with ids.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        remedy = "Give the path of both files, PREFIX.bin and PREFIX.idx, as data.path=PREFIX."
        raise ConfigError("data.path", data.path, f"{error.filename}: {error.strerror}", remedy) from None
    dtype, lengths, offsets, _ = _index_in(data, index, content)
    item = np.dtype(dtype).itemsize
    # The file is read as one stream, which is right only if its sequences lie without gaps and in order.
    ends = np.cumsum(lengths, dtype=np.int64) * item
    if (lengths < 0).any() or (offsets != ends - lengths * np.int64(item)).any():
        raise _damage_error(data, index, "places sequences that do not follow one another")
    total = int(ends[-1]) if len(ends) else 0
    if total != size:
        raise _damage_error(data, ids, f"holds {size:,} bytes, and {index.name} describes {total:,}")
    return TokenFile(ids, total // item, dtype)


def starts_in_index(data: DataSpec, tokens: TokenFile) -> NDArray[np.int64]:
    """The first token of every document, from an index that `prepare_indexed` has read."""
    path = tokens.path.with_suffix(".idx")
    index = _index_in(data, path, np.memmap(path, mode="r"))
    # Bounds number sequences, the last being the number of all of them.
    bounds, count = index.bounds, len(index.lengths)
    if len(bounds) < 2 or (bounds[0], bounds[-1]) != (0, count) or (np.diff(bounds) < 0).any():
        raise _damage_error(data, path, f"names documents that do not cover its {count:,} sequences")
    return np.concatenate(([0], np.cumsum(index.lengths, dtype=np.int64)))[bounds]


def _index_in(data: DataSpec, index: Path, content: NDArray[np.uint8]) -> DatasetIndex:
    head = content[: HEADER.size].tobytes()
    if not head.startswith(MAGIC):
        raise _damage_error(data, index, "does not start as the index of an indexed dataset does")
    if len(head) < HEADER.size:
        raise _damage_error(data, index, f"ends after {len(head)} bytes")
    _, version, code, count, num_bounds = HEADER.unpack(head)
    if version != VERSION or code not in DTYPES:
        problem = f"has version {version} and ids of type {code}, which this reader does not know"
        raise _damage_error(data, index, problem)
    # A sequence has 4 bytes for its length and 8 for its offset, and a bound of a document has 8.
    if len(content) < HEADER.size + 12 * count + 8 * num_bounds:
        raise _damage_error(data, index, f"ends after {len(content):,} bytes, before the last of {count:,} sequences")
    ends = np.cumsum([HEADER.size, 4 * count, 8 * count, 8 * num_bounds])
    lengths, offsets, bounds = (content[start:end] for start, end in pairwise(ends))
    return DatasetIndex(DTYPES[code], lengths.view("<i4"), offsets.view("<i8"), bounds.view("<i8"))


def _damage_error(data: DataSpec, path: Path, problem: str) -> ConfigError:
    return ConfigError("data.path", data.path, f"{path} {problem}", WRITE_AGAIN)


def _check_ids(data: DataSpec, model: ModelSpec, tokens: TokenFile, cache_dir: Path) -> None:
    if not tokens.num_tokens:
        raise ConfigError("data.path", data.path, "holds no tokens", WRITE_AGAIN)
    limits = np.iinfo(np.dtype(tokens.dtype))
    # A type that cannot hold an id beyond the vocabulary spares reading the file through.
    if limits.min == 0 and limits.max < model.vocab_size:
        return
    types = {"smallest": int, "largest": int}
    bounds = remembered(tokens.path, cache_dir, "indexed", types, partial(_bounds, tokens))
    smallest, largest = bounds["smallest"], bounds["largest"]
    if smallest < 0 or largest >= MOST_IDS:
        raise _damage_error(
            data, tokens.path, f"holds the id {smallest if smallest < 0 else largest}, which no vocabulary has"
        )
    if largest >= model.vocab_size:
        problem = f"has ids up to {largest}, and model.vocab_size = {model.vocab_size}"
        remedy = f"Use model.vocab_size={padded_vocabulary(largest + 1, 1)} or more."
        raise ConfigError("data.path", data.path, problem, remedy)


def _bounds(tokens: TokenFile) -> dict[str, int]:
    """The smallest and the largest id."""
    ids = tokens.read()
    chunks = [ids[start : start + CHUNK_TOKENS] for start in range(0, len(ids), CHUNK_TOKENS)]
    return {"smallest": min(int(chunk.min()) for chunk in chunks), "largest": max(int(chunk.max()) for chunk in chunks)}
