"""The tokenizer that is kept beside weights gives the ids that they were trained on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.train_core.conftest import ExperimentOf
from train_core.data.byte_pairs import keep_tokenizer
from train_core.data.tokens import prepare

TEXT = "Größe zählt, meistens: 3 · 4 = 12.\n\tand again, and again\n" * 40


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_the_kept_tokenizer_gives_the_ids_of_the_token_file_and_back_the_text(
    tokenizer: str, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    values = {"data.path": str(tmp_path / "a.txt"), "data.tokenizer": tokenizer, "model.vocab_size": 300}
    experiment = experiment_of(values)
    tokens = prepare(experiment, tmp_path / "cache")
    assert tokens is not None
    keep_tokenizer(experiment.data, tokens.first, tmp_path / "tokenizer.json")
    kept = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = [id for line in TEXT.splitlines(keepends=True) for id in kept.encode(line).ids]
    assert ids == tokens.first.read().tolist()
    assert kept.decode(ids) == TEXT


def test_the_tokenizer_of_bytes_knows_every_byte(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    drawn = random.Random(0)
    text = "".join(chr(drawn.choice([*range(1, 0x800), 0x20AC, 0x1F600])) for _ in range(4000))
    (tmp_path / "a.txt").write_text(text, newline="")
    experiment = experiment_of({"data.path": str(tmp_path / "a.txt")})
    tokens = prepare(experiment, tmp_path)
    assert tokens is not None
    keep_tokenizer(experiment.data, tokens.first, tmp_path / "tokenizer.json")
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).ids == list(text.encode())


def test_what_was_made_elsewhere_has_no_tokenizer(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    keep_tokenizer(experiment_of({"data.source": "synthetic"}).data, None, tmp_path / "tokenizer.json")
    assert not list(tmp_path.iterdir())
