"""Data sets of Hugging Face on disk, as Parquet, Arrow or JSON lines, to a token file, once for all jobs. No torch.

Every row is a document: its text, encoded by the tokenizer with the special tokens that this adds itself, and then the
`eos_token` of the `tokenizer_config.json` beside the tokenizer, where there is one. Beside the token file
`tokens-SIGNATURE.npy` lies `starts-SIGNATURE.npy`, the first token of every document. The signature covers the content
of all files, which are read through for it once in each of their states, and everything that shapes the tokens.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import re
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.errors import ConfigError
from conf.nearest import listed, nearest, padded_vocabulary
from conf.types.model_spec import ModelSpec
from conf.types.schema import DataSpec
from conf.units import count_of
from train_core.data.byte_pairs import bytes_tokenizer, tokenizer_path
from train_core.data.text_files import text_files, unreadable
from train_core.data.token_file import TokenFile, existing_file, remembered, write_header
from train_core.process.lock import wait_for_lock
from train_core.trial.atomic import replacing, stored_values

LOGGER = logging.getLogger(__name__)
FORMAT = 1  # raised when the same rows would give other tokens
ENDINGS = (".parquet", ".arrow", ".jsonl", ".jsonl.gz")
SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")
"""The words that begin the name of a file, or of its folder, by which the hub knows the parts of a data set."""
ROWS_AT_ONCE, CHARACTERS_AT_ONCE = 1000, 2**20
FILES = "Name a file that ends in .parquet, .arrow, .jsonl or .jsonl.gz, a folder of them, or a pattern."


class RowTokenizer(NamedTuple):
    """A tokenizer, the id that ends every document, if any, and the content that both were made of."""

    tokenizer: Any
    end: int | None
    content: str
    largest: int

    def ids_of(self, texts: list[str]) -> Iterator[list[int]]:
        for encoding in self.tokenizer.encode_batch_fast(texts):
            ids: list[int] = encoding.ids
            if self.end is not None and ids[-1:] != [self.end]:
                ids = [*ids, self.end]
            yield ids


def prepare_rows(data: DataSpec, model: ModelSpec, cache_dir: Path) -> TokenFile:
    """The tokens of all rows, made now or found in `cache_dir`. Several processes may ask at once.

    Raises:
        ConfigError: files or tokenizer cannot be read, the text is not in its field, or the vocabulary is too small.
    """
    paths, tokenizer = row_files(data), row_tokenizer(data)
    if tokenizer.largest >= model.vocab_size:
        problem = f"is too small for ids up to {tokenizer.largest} of data.tokenizer = {data.tokenizer}"
        remedy = f"Use model.vocab_size={padded_vocabulary(tokenizer.largest + 1, 1)} or more."
        raise ConfigError("model.vocab_size", model.vocab_size, problem, remedy)
    digest = hashlib.sha256(repr((FORMAT, tokenizer.content, tokenizer.end, data.text_field, data.max_bytes)).encode())
    states = [path.stat() for path in paths]
    for path in paths:
        found = remembered(path.absolute(), cache_dir, "content", {"sha256": str}, partial(_content_of, data, path))
        digest.update(found["sha256"].encode())
    path = cache_dir / f"tokens-{digest.hexdigest()[:16]}.npy"
    if not (kept := _kept(path)):
        with wait_for_lock(path.with_suffix(".lock")):
            # Another job may have made it while this one waited for the lock.
            if not (kept := _kept(path)):
                LOGGER.warning("data.path = %s: tokenizing %s, once, into %s", data.path, _sizes(paths), path)
                num_tokens = _save(data, tokenizer, paths, path)
                if [(s.st_size, s.st_mtime_ns) for s in states] != [
                    (s.st_size, s.st_mtime_ns) for s in map(Path.stat, paths)
                ]:
                    path.unlink()
                    remedy = "Start again when nothing writes to it any more."
                    raise ConfigError("data.path", data.path, "changed while it was read", remedy)
                kept = TokenFile(path, num_tokens)
    return kept


def starts_of_rows(data: DataSpec, tokens: TokenFile) -> NDArray[np.int64]:
    """The first token of every document."""
    return np.load(_starts_beside(tokens.path))


def row_files(data: DataSpec) -> list[Path]:
    """The files of a data set in the order of their paths.

    Raises:
        ConfigError: there is none, or they are of several splits, which are not to be trained on together.
    """
    if data.path is None:
        raise ConfigError("data.path", None, "names no data set", FILES)
    top = Path(data.path).expanduser().absolute()
    if set("*?[") & set(data.path) and not top.exists():
        paths = sorted(Path(top.anchor).glob(str(top.relative_to(top.anchor))))
        if not paths:
            raise ConfigError("data.path", data.path, "matches no file", FILES)
    elif top.is_dir():
        paths = [path for path in text_files(data).paths if path.name.endswith(ENDINGS)]
        splits = sorted({split for path in paths if (split := _split_of(path.relative_to(top)))})
        if len(splits) > 1:
            problem = f"holds several splits: {listed(splits, len(SPLITS))}"
            example = next(path for path in paths if _split_of(path.relative_to(top)) == splits[-1])
            instead = example.parent / f"{splits[-1]}*" if _split_of(Path(example.name)) else example.parent
            raise ConfigError("data.path", data.path, problem, f"Name one of them, such as data.path='{instead}'.")
    else:
        paths = [top]
    known = (*ENDINGS, ".json")  # which beside data is mostly a description of it
    if wrong := next((path for path in paths if not (path.is_file() and path.name.endswith(known))), None):
        problem = f"holds {wrong.name}, which is of another format" if wrong.exists() else "does not exist"
        raise ConfigError("data.path", data.path, problem, FILES)
    if not paths:
        raise ConfigError("data.path", data.path, "holds no such file", FILES)
    return paths


def row_tokenizer(data: DataSpec) -> RowTokenizer:
    """The tokenizer that `data.tokenizer` names; raises ConfigError where there is none."""
    from tokenizers import Tokenizer

    if data.tokenizer == "bytes":
        return RowTokenizer(bytes_tokenizer(), None, "bytes", 255)
    if data.tokenizer is None:
        raise ConfigError("data.tokenizer", None, "names no tokenizer", "Name a tokenizer.json, or use bytes.")
    path = tokenizer_path(data)
    try:
        content = path.read_text()
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the library raises no narrower one
        problem = "is not a tokenizer.json, bytes, or the folder that holds one"
        why = error.strerror if isinstance(error, OSError) else str(error)[:100]
        remedy = "Name the file that transformers writes with save_pretrained, or use bytes."
        raise ConfigError("data.tokenizer", data.tokenizer, f"{problem} ({why})", remedy) from None
    # What shortens or fills texts for other uses would lose or add tokens.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    named = stored_values(path.with_name("tokenizer_config.json")).get("eos_token")
    name = named.get("content") if isinstance(named, dict) else named
    return RowTokenizer(tokenizer, vocabulary.get(str(name)), content, max(vocabulary.values()))


def _split_of(path: Path) -> str:
    words = [re.split(r"[-._]", part)[0].lower() for part in reversed(path.parts)]
    return next((word for word in words if word in SPLITS), "")


def _sizes(paths: list[Path]) -> str:
    return f"{count_of(len(paths), 'file')} of {sum(path.stat().st_size for path in paths):,} bytes"


def _content_of(data: DataSpec, path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    except OSError as error:
        raise unreadable(data, OSError(error.errno, error.strerror, str(path))) from None


def _starts_beside(path: Path) -> Path:
    return path.with_name(path.name.replace("tokens", "starts", 1))


def _kept(path: Path) -> TokenFile | None:
    return existing_file(path) if existing_file(_starts_beside(path)) else None


def _save(data: DataSpec, tokenizer: RowTokenizer, paths: list[Path], path: Path) -> int:
    """Write ids and starts; returns how many ids there are."""
    dtype, starts, num_tokens = np.min_scalar_type(tokenizer.largest), array("q"), 0
    with replacing(path) as file:
        write_header(file, dtype, 0)
        for texts in _batches(_limited(data, paths)):
            for ids in tokenizer.ids_of(texts):
                starts.append(num_tokens)
                num_tokens += len(ids)
                file.write(np.asarray(ids, dtype).tobytes())
        if not num_tokens:
            rows = f"no row of data.max_bytes = {data.max_bytes} or less" if data.max_bytes else "no text"
            raise ConfigError("data.path", data.path, f"holds {rows} in data.text_field = {data.text_field}", FILES)
        file.seek(0)
        write_header(file, dtype, num_tokens)
        _save_starts(starts, _starts_beside(path))  # first, so that no token file is found without it
    return num_tokens


def _save_starts(starts: array[int], path: Path) -> None:
    with replacing(path) as file:
        np.save(file, np.frombuffer(starts, np.int64))


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """As many rows at once as keep every core busy, and fit into memory."""
    batch, characters = list[str](), 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) == ROWS_AT_ONCE or characters > CHARACTERS_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _limited(data: DataSpec, paths: list[Path]) -> Iterator[str]:
    """The texts of all rows that have any, of whole rows up to `max_bytes`."""
    left = data.max_bytes
    for path in paths:
        for text in _texts_in(data, path):
            content = text.encode(errors="replace")  # half a pair of surrogates is no character
            if left is not None and (left := left - len(content)) < 0:
                return
            if content:
                yield content.decode()


def _texts_in(data: DataSpec, path: Path) -> Iterator[str]:
    read = _texts_of_columns if path.suffix in (".parquet", ".arrow") else _texts_of_lines
    try:
        yield from read(data, path)
    except (OSError, EOFError, ValueError) as error:  # pyarrow's errors of damaged files are ValueErrors
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0][:200]
        remedy = "Fetch or write the file again."
        raise ConfigError("data.path", data.path, f"cannot be read ({path}: {why})", remedy) from None


def _texts_of_lines(data: DataSpec, path: Path) -> Iterator[str]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                raise ValueError(f"line {number} is not JSON in UTF-8") from None
            if not isinstance(row, dict) or data.text_field not in row:
                keys = sorted(row) if isinstance(row, dict) else []
                raise _no_field(data, f"is not in line {number} of {path}", keys)
            text = row[data.text_field]
            if not isinstance(text, str | None):
                raise _no_field(data, f"is not a text in line {number} of {path}", sorted(row))
            yield text or ""


def _texts_of_columns(data: DataSpec, path: Path) -> Iterator[str]:
    """The texts of a Parquet or Arrow file, a piece at a time."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        remedy = "Run pip install pyarrow, or give JSON lines."
        problem = f"has {path.name}, and the package pyarrow, which reads it, is not installed"
        raise ConfigError("data.path", data.path, problem, remedy) from None
    if path.suffix == ".parquet":
        table = pq.ParquetFile(path, memory_map=True)
        schema, pieces = table.schema_arrow, partial(table.iter_batches, ROWS_AT_ONCE, columns=[data.text_field])
    else:
        stream = pa.ipc.open_stream(pa.memory_map(str(path)))
        schema, pieces = stream.schema, partial(iter, stream)
    if data.text_field not in schema.names:
        raise _no_field(data, f"is no column of {path}", schema.names)
    kind = schema.field(data.text_field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise _no_field(data, f"is a column of {kind}, and not of text, in {path}", schema.names)
    for piece in pieces():
        yield from (text or "" for text in piece.column(data.text_field).to_pylist())


def _no_field(data: DataSpec, problem: str, known: list[str]) -> ConfigError:
    return ConfigError("data.text_field", data.text_field, problem, nearest(data.text_field, known or ["text"]))
