"""Text to a memory-mapped file of token ids, once for all jobs that ask. No torch.

A token file is `tokens-SIGNATURE.npy` (unsigned integers, one dim), where the signature covers the content of the text
and everything that shapes the tokens; beside it lies `tokenizer-SIGNATURE.json` where byte pairs were learnt. Text is
read in pieces, once for the signature and once more for each pass that makes tokens, so that its size does not matter
to memory.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.errors import ConfigError
from conf.types.model_spec import ModelSpec
from conf.types.schema import DataSpec
from train_core.data import byte_pairs
from train_core.data.byte_pairs import BytePairs, learnt_beside
from train_core.data.text_files import TextFiles, pieces, text_files
from train_core.data.token_file import CHUNK_TOKENS, TokenFile, existing_file, write_header
from train_core.process.lock import wait_for_lock
from train_core.trial.atomic import replacing, write_atomically

NUM_BYTES = 256
BYTES_FORMAT, BPE_FORMAT = 1, 2  # raised when the same text would give other tokens
LOGGER = logging.getLogger(__name__)


class Content(NamedTuple):
    """The content of a text; equal where the same tokens follow."""

    signature: str
    num_bytes: int


def prepare_text(data: DataSpec, model: ModelSpec, cache_dir: Path) -> TokenFile:
    """The tokens of a text, made now or found in `cache_dir`. Several processes may ask at once.

    Raises:
        ConfigError: the text cannot be read, is none, or changes meanwhile; the vocabulary has no room for bytes.
    """
    if model.vocab_size < NUM_BYTES:
        problem = f"is less than the {NUM_BYTES} ids that the tokenizer data.tokenizer = {data.tokenizer} needs"
        raise ConfigError("model.vocab_size", model.vocab_size, problem, f"Use {NUM_BYTES} or more.")
    files = text_files(data)
    # Said first, because a folder that seems to hold no text may hold hidden text.
    if left_out := files.what_is_left_out():
        _say(f"data.path = {data.path}: not read are {left_out}")
    content = _content(data, model, files.paths)
    _warn_of_surprises(data, files, content.num_bytes)
    path = cache_dir / f"tokens-{content.signature}.npy"
    if found := existing_file(path):
        return found
    with wait_for_lock(path.with_suffix(".lock")):
        # Another job may have made it while this one waited for the lock.
        return existing_file(path) or TokenFile(path, _save(data, model, files.paths, content, path))


def starts_of_files(data: DataSpec, tokens: TokenFile) -> NDArray[np.int64]:
    """The first token of every file of a text; one that begins in the file before belongs to that."""
    sizes = [path.stat().st_size for path in text_files(data).paths]
    offsets = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
    if data.tokenizer == "bytes":
        return offsets
    vocabulary: dict[str, int] = json.loads(learnt_beside(tokens.path).read_text())["model"]["vocab"]
    num_bytes = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    num_bytes[list(vocabulary.values())] = list(map(len, vocabulary))  # a character stands for a byte
    ids, before, starts = tokens.read(), 0, np.full(len(offsets), tokens.num_tokens)
    for first in range(0, len(ids), CHUNK_TOKENS):
        ends = before + np.cumsum(num_bytes[ids[first : first + CHUNK_TOKENS]])
        is_here = (before <= offsets) & (offsets < ends[-1])
        # The first token that begins at the offset or after it is the one after all that end before.
        begins = np.concatenate(([before], ends[:-1]))
        starts[is_here] = first + np.searchsorted(begins, offsets[is_here])
        before = int(ends[-1])
    return starts


def _content(data: DataSpec, model: ModelSpec, paths: list[Path]) -> Content:
    shaping = f"{BYTES_FORMAT} bytes {NUM_BYTES}"
    if data.tokenizer == "bpe":
        held_out = f"{data.held_out_fraction} of {model.seq_length}" if data.held_out_fraction else "nothing"
        shaping = f"{BPE_FORMAT} bpe {model.vocab_size} from {byte_pairs.SAMPLE_BYTES} without {held_out}"
    digest, num_bytes, is_blank = hashlib.sha256(f"{shaping}\n".encode()), 0, True
    for piece in pieces(data, paths):
        encoded = piece.encode()
        digest.update(encoded)
        num_bytes += len(encoded)
        is_blank = is_blank and piece.isspace()
    if is_blank:
        raise ConfigError("data.path", data.path, "holds no text", "Name a text file or a folder of text files.")
    return Content(digest.hexdigest()[:16], num_bytes)


def _save(data: DataSpec, model: ModelSpec, paths: list[Path], content: Content, path: Path) -> int:
    """Write the ids as they come; returns how many they are.

    Raises:
        OSError: with the path, and the cause where the disk told it.
    """
    pairs = BytePairs(model.vocab_size, content.num_bytes, data.held_out_fraction, model.seq_length)
    by_bytes, read = data.tokenizer == "bytes", partial(pieces, data, paths)
    dtype = np.dtype(np.uint8) if by_bytes else pairs.dtype
    try:
        with replacing(path) as file:
            write_header(file, dtype, 0)
            if by_bytes:
                num_tokens = sum(file.write(piece.encode()) for piece in read())
            else:
                num_tokens, tokenizer = pairs.write(file, read)
                # First, so that no token file is found without the tokenizer that gives its ids a meaning.
                write_atomically(learnt_beside(path), tokenizer)
            if _content(data, model, paths) != content:  # or the signature would not name these tokens
                remedy = "Start again when nothing writes to it any more."
                raise ConfigError("data.path", data.path, "changed while it was read", remedy)
            file.seek(0)
            write_header(file, dtype, num_tokens)
    except OSError as error:
        code = error.errno or errno.ENOSPC
        raise OSError(code, os.strerror(code), str(path)) from None
    return num_tokens


def _warn_of_surprises(data: DataSpec, files: TextFiles, num_bytes: int) -> None:
    """Warn of what a person who names a text would not expect. Of Python's own library nobody expects all of it."""
    if data.path is None:
        return
    assert data.max_bytes is not None
    if data.max_bytes < (total := files.num_bytes()):
        _say(f"data.path = {data.path}: took {num_bytes:,} of {total:,} bytes; data.max_bytes={total} takes all")
    if data.tokenizer == "bpe" and num_bytes > byte_pairs.SAMPLE_BYTES:
        _say(f"data.tokenizer = bpe: learns from {byte_pairs.SAMPLE_BYTES:,} of {num_bytes:,} bytes of text")


@lru_cache
def _say(words: str) -> None:
    """Once in a process, which may prepare the same text for several trials."""
    LOGGER.warning(words)
