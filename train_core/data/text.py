"""Text to a memory-mapped file of token ids, once for all jobs that ask. No torch.

A token file is `tokens-SIGNATURE.npy` (uint16 or uint32, one dim), where the signature covers the content of the text
and everything that shapes the tokens.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from conf.errors import ConfigError
from conf.schema import DataSpec
from conf.world import ModelSpec
from train_core.data.token_file import TokenFile
from train_core.trial_folder import replacing

NUM_BYTES = 256
FORMAT = 1  # raised when the same text would give other tokens


def prepare_text(data: DataSpec, model: ModelSpec, cache_dir: Path) -> TokenFile:
    """The tokens of a text, made now or found in `cache_dir`. Several processes may ask at once."""
    _check_vocabulary(data, model)
    text = _read_text(data)
    path = cache_dir / f"tokens-{_signature(data, model, text)}.npy"
    return _found(path) or _made(data, model, text, path)


def _found(path: Path) -> TokenFile | None:
    """The token file; None when there is none, or when it is damaged and has to be made again."""
    try:
        return TokenFile(path, len(np.load(path, mmap_mode="r")))
    except (OSError, ValueError, EOFError):
        return None


def _made(data: DataSpec, model: ModelSpec, text: str, path: Path) -> TokenFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        # Another job may have made it while this one waited for the lock.
        if (found := _found(path)) is not None:
            return found
        ids = _tokenize(data, model, text)
        _save_atomically(path, ids)
    return TokenFile(path, len(ids))


def _signature(data: DataSpec, model: ModelSpec, text: str) -> str:
    shaping = f"{FORMAT} {data.tokenizer} {model.vocab_size if data.tokenizer == 'bpe' else NUM_BYTES}\n"
    return hashlib.sha256(shaping.encode() + text.encode()).hexdigest()[:16]


def _tokenize(data: DataSpec, model: ModelSpec, text: str) -> NDArray[np.unsignedinteger]:
    if data.tokenizer == "bytes":
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16)
    return _tokenize_with_bpe(text, model.vocab_size)


def _tokenize_with_bpe(text: str, vocab_size: int) -> NDArray[np.unsignedinteger]:
    """Train a byte-level byte-pair encoding of at most `vocab_size` ids on the text, and apply it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    lines = text.splitlines(keepends=True)
    tokenizer.train_from_iterator(lines, trainer)
    encoded = tokenizer.encode_batch(lines)
    dtype = np.uint16 if vocab_size <= 2**16 else np.uint32
    return np.concatenate([np.asarray(line.ids, dtype=dtype) for line in encoded])


def _read_text(data: DataSpec) -> str:
    """The text of all files in order, up to `max_bytes`; a character that is cut in two at the end is dropped."""
    assert data.max_bytes is not None
    parts, left = [], data.max_bytes
    for path in _text_files(data):
        if left <= 0:
            break
        content = _read_file(data, path, left)
        parts.append(content)
        left -= len(content.encode())
    text = "".join(parts)
    if not text.strip():
        raise ConfigError("data.path", data.path, "holds no text", "Name a text file or a folder of text files.")
    return text


def _text_files(data: DataSpec) -> Iterator[Path]:
    # Without a path the text is Python's own library, which every machine that runs this has.
    if data.path is None:
        yield from sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        return
    path = Path(data.path).expanduser()
    if path.is_dir():
        yield from sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    elif path.is_file():
        yield path
    else:
        raise ConfigError("data.path", data.path, "does not exist", "Name a text file or a folder of text files.")


def _read_file(data: DataSpec, path: Path, max_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes)
    except OSError as error:
        problem = f"cannot be read ({path}: {error.strerror})"
        raise ConfigError("data.path", data.path, problem, "Make it readable, or name another.") from None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        # A character of UTF-8 has at most four bytes, so that only the last three can be of one that was cut.
        if len(content) < max_bytes or error.start < len(content) - 3:
            raise _not_text(data, path) from None
        text = content[: error.start].decode()
    if "\0" in text:
        raise _not_text(data, path)
    return text


def _not_text(data: DataSpec, path: Path) -> ConfigError:
    remedy = "Name UTF-8 text: one file, or a folder that holds nothing else."
    return ConfigError("data.path", data.path, f"is not text ({path} is binary or not UTF-8)", remedy)


def _check_vocabulary(data: DataSpec, model: ModelSpec) -> None:
    if model.vocab_size < NUM_BYTES:
        problem = f"is less than the {NUM_BYTES} ids that the tokenizer data.tokenizer = {data.tokenizer} needs"
        raise ConfigError("model.vocab_size", model.vocab_size, problem, f"Use {NUM_BYTES} or more.")


def _save_atomically(path: Path, array: NDArray[np.unsignedinteger]) -> None:
    with replacing(path) as file:
        try:
            np.save(file, array)
        except OSError as error:  # numpy does not pass on why it could not write everything
            code = error.errno or errno.ENOSPC
            raise OSError(code, os.strerror(code), str(path)) from None
