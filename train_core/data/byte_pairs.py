"""A byte-pair encoding that is learnt from a sample of a text's training part, and then applied to all of it. No torch.

The held-out part is the end of the tokens, and where that lies in the text is known only once the text is encoded. So
the sample ends well before it, and if an encoding shows that it did not, a shorter sample is taken.

The encoding is saved beside a checkpoint as a tokenizer file. Without it weights that were trained on byte pairs could
be used on no text: the pairs were learnt from the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from conf.types.schema import DataSpec
from train_core.data.text_files import PIECE_BYTES, blocks
from train_core.data.token_file import TokenFile, split
from train_core.trial.atomic import write_atomically

SAMPLE_BYTES = 16_000_000
"""More text adds few pairs to a vocabulary, and learning keeps every distinct word in memory."""

MARGIN = 1.1
"""The factor of the held-out fraction that a sample leaves out at first: the last tokens may be longer than others."""

NUM_PARTS, FEWEST_CHARACTERS = 64, 2**10
"""A text of which some is held out is cut into so many parts or more, unless they would be shorter than this: a sample
ends with a part."""

Pieces = Callable[[], Iterator[str]]
"""Begins to read the text anew."""


class End(NamedTuple):
    """The end of a block."""

    num_bytes: int
    num_tokens: int


class Encoded(NamedTuple):
    """The number of ids that a text has become, and the tokenizer, as the content of a `tokenizer.json`."""

    num_tokens: int
    tokenizer: str


@dataclass(frozen=True)
class BytePairs:
    """The settings that shape the ids beside the text.

    Attributes:
        num_bytes: of the whole text.
    """

    vocab_size: int
    num_bytes: int
    held_out_fraction: float
    seq_length: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.min_scalar_type(self.vocab_size - 1)

    def write(self, file: BinaryIO, pieces: Pieces) -> Encoded:
        """Write the ids of the whole text at the end of a file."""
        # Up to where the text is taken for training at first, in bytes.
        start, limit = file.tell(), max(0, int(self.num_bytes * (1 - MARGIN * self.held_out_fraction)))
        while True:
            tokenizer = self._train_tokenizer(pieces, limit)
            ends = self._encode(tokenizer, file, pieces)
            sampled = max(end.num_bytes for end in ends if end.num_bytes <= limit)
            if not self.held_out_fraction or sampled <= (limit := self._bytes_trained_on(ends)):
                return Encoded(ends[-1].num_tokens, tokenizer.to_str())
            file.seek(start)
            file.truncate()

    def sample_lines(self, pieces: Pieces, limit: int) -> Iterator[str]:
        """Lines spread evenly over the first `limit` bytes, about `SAMPLE_BYTES` of them at most."""
        end, stride = 0, max(1, math.ceil(limit / SAMPLE_BYTES))
        for number, block in enumerate(self._blocks(pieces)):
            end += len(block.encode())
            if end > limit:
                return
            if number % stride == 0:
                yield from _lines(block)

    def _blocks(self, pieces: Pieces) -> Iterator[str]:
        part = self.num_bytes // NUM_PARTS if self.held_out_fraction else PIECE_BYTES
        return blocks(pieces(), min(PIECE_BYTES, max(FEWEST_CHARACTERS, part)))

    def _train_tokenizer(self, pieces: Pieces, limit: int) -> Any:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        # All 256 bytes are ids, so that every text has an encoding, also one with characters that the sample lacks.
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=self.vocab_size, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(self.sample_lines(pieces, limit), trainer)
        return tokenizer

    def _encode(self, tokenizer: Any, file: BinaryIO, pieces: Pieces) -> list[End]:
        """Write the ids; returns where each block ends."""
        ends = [End(0, 0)]
        for block in self._blocks(pieces):
            lines = [np.asarray(line.ids, self.dtype) for line in tokenizer.encode_batch_fast(_lines(block))]
            file.write(b"".join(line.tobytes() for line in lines))
            before = ends[-1]
            ends.append(End(before.num_bytes + len(block.encode()), before.num_tokens + sum(map(len, lines))))
        return ends

    def _bytes_trained_on(self, ends: list[End]) -> int:
        """The bytes of the text, in whole blocks, that give tokens none of which is held out."""
        num_training = split(ends[-1].num_tokens, self.seq_length, self.held_out_fraction).num_training
        return max(end.num_bytes for end in ends if end.num_tokens <= num_training * self.seq_length)


def _lines(block: str) -> list[str]:
    return block.splitlines(keepends=True)


NAME = "tokenizer.json"


def learnt_beside(tokens: Path) -> Path:
    """The file of the byte pairs that a token file was made with."""
    return tokens.with_name(f"{tokens.stem.replace('tokens', 'tokenizer', 1)}.json")


def keep_tokenizer(data: DataSpec, tokens: TokenFile | None, kept: Path) -> None:
    """Write the tokenizer of the tokens; nothing where they were made elsewhere."""
    if (tokenizer := tokenizer_of(data, tokens)) is not None:
        write_atomically(kept, tokenizer, durable=False)


def tokenizer_of(data: DataSpec, tokens: TokenFile | None) -> str | None:
    """The content of a `tokenizer.json` of the tokens; None where they were made elsewhere."""
    if tokens is None or data.source == "megatron":
        return None
    if data.tokenizer == "bytes":
        return str(bytes_tokenizer().to_str())
    if data.source == "huggingface":
        return tokenizer_path(data).read_text()
    learnt = learnt_beside(tokens.path)
    return learnt.read_text() if learnt.exists() else None


def tokenizer_path(data: DataSpec) -> Path:
    """The file of a tokenizer that is not made here."""
    path = Path(str(data.tokenizer)).expanduser()
    return path / NAME if path.is_dir() else path


def bytes_tokenizer() -> Any:
    """A tokenizer whose ids are the bytes of the text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=dict(zip(_names_of_bytes(), range(256), strict=True)), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _names_of_bytes() -> list[str]:
    """The character that byte-level encodings write for each byte: itself where it can be seen, else one above 255.

    Source: GPT-2's encoder, which `tokenizers` follows.
    """
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(others)) for byte in range(256)]
