"""Where documents begin: in Megatron-LM's index, and in a text's files, in bytes and in byte pairs."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from conf.errors import ConfigError, InfeasiblePlan
from tests.composed import load
from tests.train_core.conftest import ExperimentOf
from train_core.data.byte_pairs import learnt_beside
from train_core.data.token_file import DocumentNumbers, TokenFile
from train_core.data.tokens import TRAINING, open_windows, prepare
from train_core.model.documents import Documents

DOCUMENT_NUMBERS = TokenFile.document_numbers
MEGATRON = Path(__file__).parent / "megatron"
TEXTS = ["a first line\nand a second, no end", "", "the third file\n" * 9, "é€ and more of that", "the end\n"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text)
    return folder


def starts_of(experiment: object, cache: Path) -> list[int]:
    tokens = prepare(experiment, cache)  # type: ignore[arg-type]
    assert tokens is not None
    assert tokens.first.documents is not None
    return np.load(tokens.first.documents).tolist()


@pytest.mark.parametrize("name", ["uint16", "int32"])
def test_an_index_says_where_documents_begin(experiment_of: ExperimentOf, tmp_path: Path, name: str) -> None:
    values = {"data.source": "megatron", "data.path": str(MEGATRON / name), "data.separate_documents": True}
    # Documents of 60, 44, 25, 70 and 11 ids, the second of three sequences; see megatron/README.md.
    assert starts_of(experiment_of(values), tmp_path) == [0, 60, 104, 129, 199]


def test_the_files_of_a_text_are_its_documents(experiment_of: ExperimentOf, folder: Path, tmp_path: Path) -> None:
    experiment = experiment_of({"data.path": str(folder), "data.separate_documents": True})
    sizes = [len(text.encode()) for text in TEXTS if text]
    assert starts_of(experiment, tmp_path) == [0, *accumulate(sizes)][:-1]


def test_byte_pairs_across_two_files_belong_to_the_first(
    experiment_of: ExperimentOf, folder: Path, tmp_path: Path
) -> None:
    values = {"data.path": str(folder), "data.tokenizer": "bpe", "model.vocab_size": 280}
    experiment = experiment_of(values | {"data.separate_documents": True})
    starts, tokens = starts_of(experiment, tmp_path), prepare(experiment, tmp_path)
    assert tokens is not None
    tokenizer = Tokenizer.from_str(learnt_beside(tokens.first.path).read_text())
    before = [len(tokenizer.decode(tokens.first.read()[:start].tolist()).encode()) for start in starts]
    offsets = [0, *accumulate(len(text.encode()) for text in TEXTS if text)][:-1]
    # A token may begin before the end of a file and end after it, so that the next document begins a little later.
    longest = max(len(name) for name in tokenizer.get_vocab())
    assert all(0 <= begin - offset < longest for begin, offset in zip(before, offsets, strict=True))
    assert before[2] == offsets[2]  # where a file ends with a line, no token goes on


def test_document_numbers_travel_with_the_tokens(experiment_of: ExperimentOf, folder: Path, tmp_path: Path) -> None:
    experiment = experiment_of({"data.path": str(folder), "data.separate_documents": True})
    tokens = prepare(experiment, tmp_path)
    training = open_windows(experiment, tokens)[TRAINING]
    of_documents = open_windows(experiment, tokens, DOCUMENT_NUMBERS)[TRAINING]
    text = "".join(TEXTS).encode()
    of_byte = np.repeat(np.arange(len(TEXTS)), [len(text.encode()) for text in TEXTS])
    for sample in range(8):
        ids, numbers = training(sample), of_documents(sample)
        start = text.index(bytes(ids.astype(np.uint8)))
        is_same = np.diff(of_byte[start : start + len(ids)]) == 0
        assert ((np.diff(numbers) == 0) == is_same).all()


def test_numbers_follow_from_where_documents_begin() -> None:
    numbers = DocumentNumbers(np.array([0, 3, 4, 9]), 12)
    assert numbers[0:12].tolist() == [1, 1, 1, 2, 3, 3, 3, 3, 3, 4, 4, 4]
    assert numbers[3:9].tolist() == [2, 3, 3, 3, 3, 3]
    assert numbers[5:6].tolist() == [3]


def test_positions_begin_anew_in_every_document_and_every_sequence() -> None:
    documents = Documents.of(np.array([[4, 7], [4, 8], [5, 8], [5, 8], [5, 9]]), torch.from_numpy)
    assert documents.positions.t().tolist() == [[0, 1, 0, 1, 2], [0, 0, 1, 2, 0]]
    assert documents.bounds is not None
    assert documents.bounds.tolist() == [0, 2, 5, 6, 9, 10]
    assert documents.longest == 3
    assert documents.mask[1, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 0, 0, 1],
    ]


def test_what_has_no_documents_is_refused(experiment_of: ExperimentOf, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.separate_documents.* random tokens. Set .*=false, or use another"):
        load(["data=synthetic", "data.separate_documents=true"])
    one = experiment_of({"data.path": str(folder / "2.txt"), "data.separate_documents": True})
    with pytest.raises(ConfigError, match=r"data\.separate_documents.*finds nothing to separate: .* is one document"):
        prepare(one, tmp_path)
    with pytest.raises(InfeasiblePlan, match=r"training\.compile_layers .*would compile again for every batch"):
        experiment_of({"training.compile_layers": True, "data.separate_documents": True})


def test_a_configuration_without_the_key_measures_what_it_did(experiment_of: ExperimentOf) -> None:
    separate = experiment_of({"data.separate_documents": True})
    assert separate.fingerprint != experiment_of({}).fingerprint
