"""Megatron-LM's indexed datasets, held against files of an independent writer (see megatron/README.md)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.errors import ConfigError
from tests.composed import load
from tests.messages import refused
from tests.train_core.conftest import ExperimentOf
from train_core.data.tokens import TRAINING, open_windows, prepare

WRITTEN = Path(__file__).parent / "megatron"


def on(experiment_of: ExperimentOf, prefix: Path | str | None, **values: Any) -> Any:
    dotted = {key.replace("__", "."): value for key, value in values.items()}
    return experiment_of({"data.source": "megatron", "data.path": None if prefix is None else str(prefix)} | dotted)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for path in WRITTEN.glob("int32.*"):
        shutil.copy(path, tmp_path)
    return tmp_path / "int32"


@pytest.mark.parametrize("name", ["uint16", "int32"])
def test_ids_are_those_that_megatron_reads_back(experiment_of: ExperimentOf, tmp_path: Path, name: str) -> None:
    tokens = prepare(on(experiment_of, WRITTEN / name), tmp_path)
    assert tokens is not None
    assert tokens.first.read().tolist() == json.loads((WRITTEN / "expected.json").read_text())[name]


def test_sequences_are_packed_across_documents(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    experiment = on(experiment_of, WRITTEN / "uint16")
    stream = json.loads((WRITTEN / "expected.json").read_text())["uint16"]
    training = open_windows(experiment, prepare(experiment, tmp_path))[TRAINING]
    seen = sorted(training(sample).tolist() for sample in range(13))
    assert seen == sorted(stream[start : start + 17] for start in range(0, 13 * 16, 16))


def test_a_dataset_is_read_through_once_and_again_when_it_has_changed(
    experiment_of: ExperimentOf, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = on(experiment_of, copied)
    prepare(experiment, tmp_path / "cache")
    (sidecar,) = (tmp_path / "cache").glob("*.json")
    assert json.loads(sidecar.read_text()) == {"smallest": 0, "largest": 255}
    with monkeypatch.context() as patched:
        patched.setattr("train_core.data.token_file.TokenFile.read", None)
        prepare(experiment, tmp_path / "cache")
    for damaged in ('{"smallest": 0}', '{"smallest": 0, "largest": "255"}', "[]", ""):
        sidecar.write_text(damaged)
        prepare(experiment, tmp_path / "cache")
        assert json.loads(sidecar.read_text()) == {"smallest": 0, "largest": 255}
    ids = np.memmap(f"{copied}.bin", dtype="<i4", mode="r+")
    ids[3] = 300
    ids.flush()
    Path(f"{copied}.bin").touch()
    with refused(ConfigError, "data.path"):
        prepare(experiment, tmp_path / "cache")


def test_the_configuration_group_names_the_source() -> None:
    assert load(["data=megatron", "data.path=x"]).data.source == "megatron"


def cut(suffix: str, size: int) -> Callable[[Path], None]:
    def damage(prefix: Path) -> None:
        path = Path(f"{prefix}{suffix}")
        path.write_bytes(path.read_bytes()[:size])

    return damage


def overwritten(suffix: str, offset: int, content: bytes) -> Callable[[Path], None]:
    def damage(prefix: Path) -> None:
        path = Path(f"{prefix}{suffix}")
        before = path.read_bytes()
        path.write_bytes(before[:offset] + content + before[offset + len(content) :])

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda prefix: Path(f"{prefix}.idx").unlink(),
        lambda prefix: Path(f"{prefix}.bin").unlink(),
        cut(".idx", 0),
        cut(".idx", 20),
        cut(".idx", 100),
        cut(".bin", 400),
        overwritten(".idx", 0, b"NOTANIDX"),
        overwritten(".idx", 9, b"\x02"),
        overwritten(".idx", 17, b"\x07"),
        overwritten(".idx", 34, b"\x05"),
        overwritten(".bin", 8, b"\xff\xff\xff\xff"),
    ],
    ids=["no index", "no ids", "empty", "header", "index", "ids", "magic", "version", "type", "gaps", "negative"],
)
def test_a_damaged_dataset_is_one_clear_error(
    experiment_of: ExperimentOf, copied: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(copied)
    with refused(ConfigError, "data.path"):
        prepare(on(experiment_of, copied), tmp_path / "cache")


def test_a_smaller_vocabulary_is_refused_with_the_largest_id(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    with refused(ConfigError, "data.path"):
        prepare(on(experiment_of, WRITTEN / "uint16", model__vocab_size=128), tmp_path)


def test_a_dataset_without_a_path_or_of_few_tokens_is_refused(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    with refused(ConfigError, "data.path"):
        prepare(on(experiment_of, None), tmp_path)
    with refused(ConfigError, "data.path"):
        prepare(on(experiment_of, WRITTEN / "uint16", model__seq_length=256), tmp_path)
