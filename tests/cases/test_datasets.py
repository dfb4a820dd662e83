"""Megatron's indexed datasets and texts that are too short, damaged, or of another index: remedies work as printed."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from conf.compose.load import settings_of
from conf.compose.tree import with_values
from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from conf.types.schema import Value
from tests.composed import compose_tree
from train_core.data.tokens import prepare, split_of

CODES = {"<i4": 4, "<i8": 5, "<u2": 8}


def dataset(prefix: Path, documents: Sequence[Sequence[int]], dtype: str = "<i4", bounds: Sequence[int] = ()) -> Path:
    """Write an index and ids as Megatron-LM's tools do, each document being one sequence."""
    item = np.dtype(dtype).itemsize
    lengths = np.array([len(each) for each in documents], "<i4")
    offsets = (np.cumsum(lengths, dtype="<i8") - lengths) * item
    ends = np.array(bounds or range(len(documents) + 1), "<i8")
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, CODES[dtype], len(lengths), len(ends))
    Path(f"{prefix}.idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + ends.tobytes())
    Path(f"{prefix}.bin").write_bytes(np.concatenate([np.array(each, dtype) for each in documents]).tobytes())
    return prefix


def on(prefix: Path, **values: Value) -> Experiment:
    tree = compose_tree(["model=tiny", "cluster=local", "data=megatron", "batch.global_batch_size=2"])
    dotted = {"data.path": str(prefix), "model.seq_length": 32} | {k.replace("__", "."): v for k, v in values.items()}
    return settings_of(with_values(tree, dotted)).experiment()


def refused(experiment: Experiment, cache: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        prepare(experiment, cache)
    return caught.value


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.7])
@pytest.mark.parametrize("tokens", [3, 20, 32])
def test_a_dataset_shorter_than_a_sequence_says_which_length_it_has_room_for(
    tokens: int, fraction: float, tmp_path: Path
) -> None:
    prefix = dataset(tmp_path / "few", [range(tokens)])
    error = refused(on(prefix, data__held_out_fraction=fraction), tmp_path)
    assert error.key == "data.path"
    assert "max_bytes" not in error.remedy
    fits = re.search(r"model\.seq_length=(\d+) or less", error.remedy)
    if tokens == 3 and fraction == 0.7:
        assert fits is None  # of two sequences of one token none would be left to train on
        return
    assert fits is not None, error.remedy
    taken = prepare(on(prefix, data__held_out_fraction=fraction, model__seq_length=int(fits[1])), tmp_path)
    assert taken is not None


def test_that_length_suits_the_ranks_that_share_a_sequence(tmp_path: Path) -> None:
    layout: dict[str, Value] = {
        "parallel__world_size": 4,
        "parallel__tensor_parallel_size": 2,
        "parallel__sequence_parallel": True,
    }
    layout |= {"parallel__context_parallel_size": 2}
    prefix = dataset(tmp_path / "few", [range(30)])
    error = refused(on(prefix, model__seq_length=32, **layout), tmp_path)
    fits = re.search(r"model\.seq_length=(\d+) or less", error.remedy)
    assert fits is not None
    assert prepare(on(prefix, model__seq_length=int(fits[1]), **layout), tmp_path) is not None


def test_a_text_says_that_max_bytes_may_have_cut_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("twenty bytes of text")
    text: dict[str, Value] = {"data__source": "text", "data__tokenizer": "bytes", "model__vocab_size": 256}
    whole = refused(on(tmp_path / "a.txt", data__max_bytes=1000, **text), tmp_path)
    assert "max_bytes" not in whole.remedy
    (tmp_path / "a.txt").write_text("twenty bytes of text" * 10)
    cut = refused(on(tmp_path / "a.txt", data__max_bytes=20, **text), tmp_path)
    assert "raise data.max_bytes" in cut.remedy


@pytest.mark.parametrize("num_sequences", [1, 2, 3, 7, 20])
def test_the_held_out_share_that_is_advised_leaves_something_to_train_on(num_sequences: int, tmp_path: Path) -> None:
    tokens = 32 * num_sequences + 1
    with pytest.raises(ConfigError) as caught:
        split_of(on(tmp_path, data__held_out_fraction=0.99), tokens)
    fits = re.search(r"data\.held_out_fraction=([\d.]+) or less", caught.value.remedy)
    assert fits is not None, caught.value.remedy
    assert split_of(on(tmp_path, data__held_out_fraction=float(fits[1])), tokens).num_training >= 1


@pytest.mark.parametrize(("batches", "num_sequences"), [(4, 20), (2, 20), (9, 20), (1, 2)])
def test_what_is_advised_for_an_evaluation_is_enough(batches: int, num_sequences: int, tmp_path: Path) -> None:
    evaluating: dict[str, Value] = {"training__evaluate_every": 1, "training__num_evaluation_batches": batches}
    evaluating["data__held_out_fraction"] = 0.1
    with pytest.raises(ConfigError) as caught:
        split_of(on(tmp_path, **evaluating), 32 * num_sequences + 1)
    advised = re.search(r"(data\.held_out_fraction|training\.num_evaluation_batches)=([\d.]+)", caught.value.remedy)
    if num_sequences == 2:
        assert advised is None  # a batch of two leaves none to train on
        assert "more data" in caught.value.remedy
        return
    assert advised is not None, caught.value.remedy
    key, number = advised.groups()
    value: Value = float(number) if "fraction" in key else int(number)
    assert split_of(on(tmp_path, **evaluating | {key.replace(".", "__"): value}), 32 * num_sequences + 1)


@pytest.mark.parametrize("wrong", [2**40, 2**62, 2**25])
def test_an_id_beyond_all_vocabularies_is_damage_and_no_vocabulary(wrong: int, tmp_path: Path) -> None:
    prefix = dataset(tmp_path / "ids", [[1, 2, wrong, 3] * 20], "<i8")
    error = refused(on(prefix), tmp_path)
    assert f"holds the id {wrong}" in str(error)
    assert "vocab_size" not in str(error)
    assert "Write the dataset again" in error.remedy


def test_ids_of_two_bytes_that_an_index_calls_four_are_damage(tmp_path: Path) -> None:
    prefix = dataset(tmp_path / "ids", [[40_000, 50_000] * 40], "<i4")
    Path(f"{prefix}.bin").write_bytes(np.array([40_000, 50_000] * 80, "<u2").tobytes())
    assert "vocab_size" not in str(refused(on(prefix), tmp_path))


def test_a_larger_vocabulary_is_still_the_remedy_for_ids_of_one(tmp_path: Path) -> None:
    error = refused(on(dataset(tmp_path / "ids", [[1, 262_143] * 40])), tmp_path)
    assert error.remedy == "Use model.vocab_size=262144 or more."


@pytest.mark.parametrize("change", ["truncated", "stale", "of another index"])
def test_ids_that_are_not_as_long_as_the_index_says_are_refused(change: str, tmp_path: Path) -> None:
    prefix = dataset(tmp_path / "ids", [[1, 2, 3] * 20, [4, 5] * 20])
    ids, other = Path(f"{prefix}.bin"), dataset(tmp_path / "other", [[1, 2] * 20])
    match change:
        case "truncated":
            ids.write_bytes(ids.read_bytes()[:-4])
        case "stale":
            ids.write_bytes(ids.read_bytes() + b"\0" * 400)
        case _:
            Path(f"{other}.idx").replace(f"{prefix}.idx")
    assert re.search(r"ids\.bin holds [\d,]+ bytes, and ids\.idx describes", str(refused(on(prefix), tmp_path)))


@pytest.mark.parametrize("bounds", [(0, 1, 2), (1, 2, 3), (0, 2, 1, 3), (0, 0)])
def test_documents_that_do_not_cover_the_sequences_are_refused_where_they_count(
    bounds: tuple[int, ...], tmp_path: Path
) -> None:
    # As merges leave them that join the lengths of two indexes, and not their documents.
    prefix = dataset(tmp_path / "ids", [[1] * 40, [2] * 40, [3] * 40], bounds=bounds)
    assert prepare(on(prefix), tmp_path) is not None
    error = refused(on(prefix, data__separate_documents=True), tmp_path)
    assert "names documents that do not cover its 3 sequences" in str(error)


def test_what_lies_beside_a_dataset_does_not_count(tmp_path: Path) -> None:
    prefix = dataset(tmp_path / "ids", [[1, 2, 3, 4] * 20])
    for name in ("ids.bin.1", "ids.idx.old", "ids_2.bin", "ids.npy"):
        (tmp_path / name).write_bytes(b"another")
    tokens = prepare(on(prefix), tmp_path)
    assert tokens is not None
    assert tokens.first.num_tokens == 80


def test_a_list_of_documents_that_a_disk_has_cut_off_is_made_again(tmp_path: Path) -> None:
    experiment = on(dataset(tmp_path / "ids", [[1] * 40, [2] * 40]), data__separate_documents=True)
    tokens = prepare(experiment, tmp_path / "cache")
    assert tokens is not None
    assert tokens.first.documents is not None
    tokens.first.documents.write_bytes(tokens.first.documents.read_bytes()[:-12])
    again = prepare(experiment, tmp_path / "cache")
    assert again is not None
    assert again.first.document_numbers()[30:50].tolist() == [1] * 10 + [2] * 10
