"""Rows of Parquet, Arrow and JSON lines to tokens: by their own tokenizer, once, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from tests.composed import load
from tests.train_core.conftest import ExperimentOf
from train_core.data.byte_pairs import keep_tokenizer
from train_core.data.token_file import TokenFile
from train_core.data.tokens import TRAINING, open_windows, prepare

TEXTS = ["Größe zählt, meistens.", "", "a second row\nof two lines " * 20, None, "the end 😀"]
KEPT = [text for text in TEXTS if text]
BEGIN, END = "<s>", "</s>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as transformers saves it: byte pairs that begin every text with <s>, and would shorten it to 9 ids."""
    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=[BEGIN, END], show_progress=False
    )
    learnt.train_from_iterator(KEPT, trainer)
    learnt.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
    learnt.enable_truncation(9)
    folder = tmp_path_factory.mktemp("tokenizer")
    learnt.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": END}}))
    return folder


def expected(tokenizer: Path) -> list[list[int]]:
    """The documents as transformers makes them."""
    theirs: Any = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer / "tokenizer.json"))
    return [[*theirs(text, truncation=False)["input_ids"], 1] for text in KEPT]


def write_rows(path: Path, texts: list[Any] = TEXTS, field: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps({"id": number, field: text}) + "\n" for number, text in enumerate(texts)).encode()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines))
    elif path.suffix == ".jsonl":
        path.write_bytes(lines)
    else:
        table = pa.table({"id": list(range(len(texts))), field: texts})
        if path.suffix == ".parquet":
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table)
    return path


def asked(experiment_of: ExperimentOf, path: Path, tokenizer: Path | str, **values: Any) -> Experiment:
    dotted = {"data.source": "huggingface", "data.path": str(path), "data.tokenizer": str(tokenizer)}
    dotted |= {"data.max_bytes": None, "model.vocab_size": 512} | {k.replace("__", "."): v for k, v in values.items()}
    return experiment_of(dotted)


def prepared(experiment: Experiment, cache: Path) -> TokenFile:
    tokens = prepare(experiment, cache)
    assert tokens is not None
    return tokens.first


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl", "a.jsonl.gz"])
def test_rows_become_the_ids_that_transformers_gives_each_with_its_end(
    name: str, experiment_of: ExperimentOf, tokenizer: Path, tmp_path: Path
) -> None:
    experiment = asked(experiment_of, write_rows(tmp_path / name), tokenizer, data__separate_documents=True)
    tokens, documents = prepared(experiment, tmp_path / "cache"), expected(tokenizer)
    assert tokens.read().tolist() == [id for document in documents for id in document]
    assert tokens.documents is not None
    assert np.load(tokens.documents).tolist() == np.cumsum([0, *map(len, documents[:-1])]).tolist()


def test_a_folder_is_read_in_the_order_of_its_paths_and_only_its_rows(
    experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    for number, text in enumerate("abc"):
        write_rows(tmp_path / "set" / f"train-{number}.parquet", [text * 20])
    (tmp_path / "set" / "README.md").write_text("not a row")
    (tmp_path / "set" / "dataset_info.json").write_text("{}")
    tokens = prepared(asked(experiment_of, tmp_path / "set", "bytes"), tmp_path / "cache")
    assert bytes(tokens.read().astype(np.uint8)) == b"a" * 20 + b"b" * 20 + b"c" * 20
    limited = asked(experiment_of, tmp_path / "set", "bytes", data__max_bytes=45)
    assert prepared(limited, tmp_path / "cache").num_tokens == 40, "whole rows alone"


def test_they_are_tokenized_once_and_again_for_other_rows_or_ids(
    experiment_of: ExperimentOf, tokenizer: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, cache = write_rows(tmp_path / "a.jsonl"), tmp_path / "cache"
    first = prepared(asked(experiment_of, file, tokenizer), cache)
    assert [message for message in caplog.messages if "tokenizing 1 file" in message]
    caplog.clear()
    made = first.path.stat().st_mtime_ns
    copied = write_rows(tmp_path / "elsewhere" / "b.jsonl")
    assert prepared(asked(experiment_of, copied, tokenizer / "tokenizer.json"), cache) == first, "by its content"
    assert (first.path.stat().st_mtime_ns, caplog.messages) == (made, [])
    limited = asked(experiment_of, file, tokenizer, data__max_bytes=550)
    others = [prepared(each, cache).path for each in (asked(experiment_of, file, "bytes"), limited)]
    write_rows(tmp_path / "a.jsonl", ["other text " * 9])
    others.append(prepared(asked(experiment_of, file, tokenizer), cache).path)
    assert len({first.path, *others}) == 4
    first.path.with_name(first.path.name.replace("tokens", "starts")).unlink()
    assert prepared(asked(experiment_of, copied, tokenizer), cache).read().tolist() == first.read().tolist()


def test_the_tokenizer_is_kept_beside_the_weights_as_it_is(
    experiment_of: ExperimentOf, tokenizer: Path, tmp_path: Path
) -> None:
    experiment = asked(experiment_of, write_rows(tmp_path / "a.jsonl"), tokenizer)
    keep_tokenizer(experiment.data, prepared(experiment, tmp_path / "cache"), tmp_path / "tokenizer.json")
    assert (tmp_path / "tokenizer.json").read_text() == (tokenizer / "tokenizer.json").read_text()


def test_sets_of_rows_are_mixed(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    paths = {name: write_rows(tmp_path / name / "train.parquet", [name[0] * 200]) for name in ("web", "code")}
    mixture = {name: {"path": str(path), "weight": 1} for name, path in paths.items()}
    experiment = asked(experiment_of, tmp_path, "bytes", data__path=None, data__mixture=mixture)
    training = open_windows(experiment, prepare(experiment, tmp_path / "cache"))[TRAINING]
    assert {chr(training(sample)[0]) for sample in range(2)} == {"w", "c"}


def test_several_splits_are_not_trained_on_together_and_one_is_as_advised(
    experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    for split in ("train", "test"):
        write_rows(tmp_path / "set" / "data" / f"{split}-00000-of-00001.parquet", [split * 9])
    with pytest.raises(ConfigError, match=r"data\.path = .*holds several splits: test, train\. Name one") as caught:
        prepare(asked(experiment_of, tmp_path / "set", "bytes"), tmp_path / "cache")
    pattern = caught.value.remedy.split("'")[1]
    tokens = prepared(asked(experiment_of, Path(pattern), "bytes"), tmp_path / "cache")
    assert bytes(tokens.read().astype(np.uint8)) == b"train" * 9


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", None, r"data\.path = .*: does not exist"),
        ("none-*.jsonl", None, r"data\.path = .*: matches no file"),
        ("a.txt", b"text", r"data\.path = .*: holds a\.txt, which is of another format"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"data\.path = .*a\.jsonl: line 2 is not JSON"),
        ("a.jsonl", b'{"text": "\xff"}\n', r"data\.path = .*a\.jsonl: line 1 is not JSON in UTF-8"),
        (
            "a.jsonl",
            b'{"content": "a"}\n',
            r"data\.text_field = 'text': is not in line 1 of .*\. Did you mean content\?",
        ),
        ("a.jsonl", b'{"text": 3}\n', r"data\.text_field = 'text': is not a text in line 1 of"),
        ("a.jsonl", b'{"text": ""}\n{"text": null}\n', r"data\.path = .*: holds no text in data\.text_field = text"),
        ("a.jsonl", b"", r"data\.path = .*: holds no text"),
        (
            "a.jsonl",
            b'{"text": "short"}',
            r"data\.path = .*: gives 5 tokens, and one sequence with its targets needs 17",
        ),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"text": "long enough"}\n' * 99, mtime=0)[:40],
            r"data\.path = .*: cannot be read \(.*end",
        ),
        ("a.parquet", b"PAR1 and not PAR1", r"data\.path = .*: cannot be read \(.*a\.parquet: "),
        ("a.arrow", b"ARROW1 and more that is none", r"data\.path = .*: cannot be read \(.*a\.arrow: "),
    ],
)
def test_what_cannot_be_read_is_one_clear_error_and_leaves_no_tokens(
    name: str, content: bytes | None, message: str, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        prepare(asked(experiment_of, tmp_path / name, "bytes"), tmp_path / "cache")
    assert all(len(np.load(path)) <= 5 for path in (tmp_path / "cache").glob("*.npy")), "only what is whole is kept"
    assert not list((tmp_path / "cache").glob(".*"))


def test_columns_that_are_not_there_or_no_text_are_named(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "a.parquet", field="content")
    for field, message in (
        ("text", r"is no column of .*Did you mean content\?"),
        ("id", "is a column of int64, and not"),
    ):
        with pytest.raises(ConfigError, match=rf"data\.text_field = '{field}': {message}"):
            prepare(asked(experiment_of, file, "bytes", data__text_field=field), tmp_path / "cache")
    assert prepared(asked(experiment_of, file, "bytes", data__text_field="content"), tmp_path / "cache").num_tokens


def test_tokenizers_that_cannot_be_are_refused(experiment_of: ExperimentOf, tokenizer: Path, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "a.jsonl")
    (tmp_path / "tokenizer.json").write_text("{}")
    for wrong in (tmp_path / "nowhere", tmp_path, file):
        with pytest.raises(ConfigError, match=r"data\.tokenizer = .*: is not a tokenizer\.json, bytes, or the folder"):
            prepare(asked(experiment_of, file, wrong), tmp_path / "cache")
    with pytest.raises(ConfigError, match=r"model\.vocab_size = 256: is too small for ids up to (\d+) of data\.tok"):
        prepare(asked(experiment_of, file, tokenizer, model__vocab_size=256), tmp_path / "cache")
    without = asked(experiment_of, file, "bytes", data__tokenizer=None)
    with pytest.raises(ConfigError, match=r"data\.tokenizer = None: names no tokenizer\. Name a tokenizer\.json"):
        prepare(without, tmp_path / "cache")
    for words, message in (
        (["data=huggingface", "data.tokenizer=bpe"], r"data\.tokenizer = 'bpe': learns from text files alone"),
        (["data=text", "data.tokenizer=my.json"], r"data\.tokenizer = 'my\.json': is no tokenizer for data\.source"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(["model=tiny", *words])
