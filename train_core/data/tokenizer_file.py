"""The tokenizer of a training, in the format of Hugging Face's `tokenizers`, kept where its weights are. No torch.

Without it weights that were trained on byte pairs could be used on no text: the pairs were learnt from the data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conf.schema import DataSpec
from train_core.data.token_file import TokenFile
from train_core.whole_files import write_atomically

NAME = "tokenizer.json"


def learnt_beside(tokens: Path) -> Path:
    """The file of the byte pairs that a token file was made with."""
    return tokens.with_name(f"{tokens.stem.replace('tokens', 'tokenizer', 1)}.json")


def keep_tokenizer(data: DataSpec, tokens: TokenFile | None, kept: Path) -> None:
    """Write the tokenizer of the tokens; nothing where they were made elsewhere."""
    if tokens is None or data.source != "text":
        return
    if data.tokenizer == "bytes":
        write_atomically(kept, bytes_tokenizer().to_str(), durable=False)
    elif (learnt := learnt_beside(tokens.path)).exists():
        write_atomically(kept, learnt.read_text(), durable=False)


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
