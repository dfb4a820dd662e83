"""Offline runs of Weights & Biases beside MLflow, written by its own library and read from its files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from conf.types.sites import TrackingSpec
from results.mlflow.run_content import RunContent, StepHistory
from results.mlflow.wandb import write_runs
from tests.results.mlflow.test_tensorboard import content

RUNS = TrackingSpec(kind="sqlite", uri=None, experiment="ours", also=("wandb",))
HEADER_BYTES, BLOCK_BYTES, RECORD = 7, 2**15, struct.Struct("<IHB")
WHOLE, LAST = 1, 4


def records(file: Path) -> Iterator[Any]:
    """The records of a run's file, which is a log of LevelDB's."""
    made: Any = import_module("wandb.proto.wandb_internal_pb2")  # its module is made at run time
    held, at, part = file.read_bytes(), HEADER_BYTES, b""
    while at + RECORD.size <= len(held):
        if (room := BLOCK_BYTES - at % BLOCK_BYTES) < RECORD.size:
            at += room
            continue
        _, size, kind = RECORD.unpack_from(held, at)
        at += RECORD.size + size
        part += held[at - size : at]
        if kind in (WHOLE, LAST):
            record = made.Record()
            record.ParseFromString(part)
            yield record
            part = b""


def write(contents: list[RunContent], folder: Path) -> list[Path]:
    write_runs(contents, RUNS, folder / "smoke" / "wandb", "tracked")
    return sorted((folder / "smoke" / "wandb").glob("offline-run-*/run-*.wandb"))


def told(file: Path) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    """The run itself, its history and its summary."""
    run, history, summary = None, list[dict[str, Any]](), dict[str, Any]()
    for record in records(file):
        match record.WhichOneof("record_type"):
            case "run":
                run = record.run
            case "history":
                items = record.history.item
                history.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
            case "summary":
                updates = record.summary.update
                summary |= {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in updates}
    return run, history, summary


@pytest.fixture(autouse=True)
def _shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A shell that would have it otherwise, and a home that nobody else has."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))


@pytest.mark.slow
def test_a_trial_is_an_offline_run_with_what_mlflow_has_of_it(tmp_path: Path) -> None:
    ended = replace(content(3, end_ms=4000), tags={"outcome": "COMPLETED", "mlflow.user": "nobody"})
    (file,) = write([ended, replace(content(0), key="waiting/1", steps=StepHistory())], tmp_path)
    run, history, summary = told(file)
    assert (run.project, run.run_group, run.display_name) == ("ours", "smoke", "tp2 / pp2")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (config["tp"], config["tags"]) == (2, {"outcome": "COMPLETED"})
    assert [(row["_step"], row["_timestamp"], row["loss"]) for row in history] == [
        (1, 1, 9.0),
        (2, 2, 8.0),
        (3, 3, 7.0),
    ]
    assert summary["pred/step_s"] == 0.5
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_one_that_has_not_changed_is_left_alone_and_one_that_has_takes_its_place(tmp_path: Path) -> None:
    (first,) = write([content(2)], tmp_path)
    made = first.stat().st_mtime_ns
    assert write([content(2)], tmp_path) == [first]
    assert first.stat().st_mtime_ns == made
    (longer,) = write([content(3)], tmp_path)
    assert (longer.name, len(told(longer)[1])) == (first.name, 3), (
        "the same id, so that it is the same run where it is synced"
    )
    (over,) = write([content(1, attempt="second")], tmp_path)
    assert (over.name == first.name, len(told(over)[1])) == (False, 1)
    (tmp_path / "smoke/wandb/written.json").write_text("{")
    assert [file.name for file in write([content(1, attempt="second")], tmp_path)] == [over.name]
