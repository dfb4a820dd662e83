"""Folders of MLflow as runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import ConfigError
from diagnose.readers import read_runs
from tests.diagnose.readers.columns.test_megatron import cells, the_run
from tests.messages import refused

PARAMS = {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "model/seq_length": 2048, "world_size": 16}


def mlflow_run(folder: Path, seconds: float = 1.25, params: dict[str, object] | None = None) -> Path:
    for name, value in (PARAMS if params is None else params).items():
        path = folder / "params" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(value))
    (folder / "metrics" / "train").mkdir(parents=True)
    rows = [f"{1_700_000_000_000 + step * 1000} {{}} {step * 10}" for step in (1, 2, 3)]
    (folder / "metrics" / "step_time").write_text("\n".join(row.format(seconds) for row in rows) + "\n")
    (folder / "metrics" / "train" / "loss").write_text("\n".join(row.format(4.5) for row in rows) + "\ncut 1\n")
    return folder


def test_a_folder_of_mlflow_is_a_run(tmp_path: Path) -> None:
    run = the_run(str(mlflow_run(tmp_path / "0a1b")))
    wanted = {"layers": "24", "hidden": "2048", "heads": "16", "seq": "2048", "num_gpus": "16"}
    assert cells(run, *wanted) == wanted
    assert [(step.number, step.seconds, step.loss) for step in run.steps] == [(n, 1.25, 4.5) for n in (10, 20, 30)]
    at = run.columns["layers"].at
    assert at is not None
    assert at.file.endswith("params/num_layers")


def test_an_experiment_is_all_of_its_runs(tmp_path: Path) -> None:
    mlflow_run(tmp_path / "a", 1.0)
    mlflow_run(tmp_path / "b", 2.0)
    (tmp_path / "meta.yaml").write_text("name: x\n")
    assert [run.steps[0].seconds for run in read_runs([tmp_path])] == [1.0, 2.0]


def test_without_times_the_stamps_of_metrics_tell_the_step(tmp_path: Path) -> None:
    folder = mlflow_run(tmp_path / "a")
    (folder / "metrics" / "step_time").unlink()
    assert [step.seconds for step in the_run(str(folder)).steps[1:]] == pytest.approx([0.1, 0.1])


def test_another_folder_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with refused(ConfigError, "run"):
        read_runs([tmp_path])
