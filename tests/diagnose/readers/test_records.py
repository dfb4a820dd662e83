"""Steps as rows: CSV, JSON lines, what wandb and TensorBoard export."""

from __future__ import annotations

import json

import pytest

from conf.errors import ConfigError
from diagnose.readers import read_runs
from diagnose.readers.records import record_of
from tests.diagnose.made_up import CORE, SIZES, Write, dump
from tests.diagnose.readers.columns.test_megatron import cells, the_run


def test_json_lines_are_steps(write: Write) -> None:
    rows = [{"step": step, "loss": 5.0, "step_time": 1.25, "tokens_per_second": 104857.6} for step in (10, 20, 30)]
    run = the_run(write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert [(step.number, step.seconds, step.tokens_per_second) for step in run.steps] == [
        (step, 1.25, 104857.6) for step in (10, 20, 30)
    ]


def test_times_since_the_first_step_are_told_apart(write: Write) -> None:
    rows = [
        {"current_steps": 10 * step, "total_steps": 870, "loss": 1.2, "elapsed_time": f"0:0{step}:20"}
        for step in (1, 2, 3)
    ]
    run = the_run(write("trainer_log.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert [step.seconds for step in run.steps[1:]] == [6.0, 6.0]


TABLES = {
    "times.csv": "step,loss,step_time\n10,9.1,4.0\n20,9.0,4.0\n30,8.9,4.0\n",
    "milliseconds.csv": "iteration,time_ms\n10,4000\n20,4000\n30,4000\n",
    "tensorboard.csv": "Wall time,Step,Value\n1700000000.1,10,9.1\n1700000040.1,20,9.0\n1700000080.1,30,8.9\n",
    "wandb.csv": '"train/global_step","_runtime"\n"10","100"\n"20","140"\n"30","180"\n',
    "numberless.csv": "iter_time\n4.0\n4.0\n4.0\n",
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_steps(write: Write, name: str) -> None:
    run = the_run(write(name, TABLES[name]))
    assert [step.seconds for step in run.steps[1:]] == pytest.approx([4.0, 4.0])


def test_a_table_beside_a_log_without_times_gives_its_steps(write: Write) -> None:
    run = the_run(write("train.log", SIZES + dump(CORE)), write("times.csv", TABLES["times.csv"]))
    assert (run.row()["tp"], len(run.steps)) == ("4", 3)


def test_a_table_without_steps_is_one_message(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"has no column of steps that is known \(a, b\)"):
        read_runs([write("bad.csv", "a,b\n1,2\n")])


def test_files_of_wandb_are_read(write: Write) -> None:
    config = "wandb_version: 1\n_wandb:\n  value:\n    x: 1\nper_device_train_batch_size:\n  desc: null\n  value: 4\n"
    run = the_run(write("config.yaml", config + "bf16:\n  value: true\n"))
    assert cells(run, "micro_batch", "precision") == {"micro_batch": "4", "precision": "bf16"}
    metadata = {"program": "pretrain_gpt.py", "gpu": "NVIDIA H100 80GB HBM3", "gpu_count": 8}
    arguments = ["--tensor-model-parallel-size", "4", "--num-layers", "32", "--bf16"]
    run = the_run(write("wandb-metadata.json", json.dumps(metadata | {"args": arguments})))
    wanted = {"tp": "4", "layers": "32", "gpus_per_node": "8", "gpu": "H100-80GB-SXM", "precision": "bf16"}
    assert cells(run, *wanted) == wanted
    assert "num_gpus" not in run.columns


@pytest.mark.parametrize("row", [{}, {"step": -1, "time": 0}, {"step": "x", "time": None}, {"step": True, "time": [1]}])
def test_a_row_that_tells_nothing_has_nothing(row: dict[str, object]) -> None:
    assert record_of(row) == (None, {})


def test_a_summary_of_wandb_is_a_step(write: Write) -> None:
    summary = {"_step": 1000, "_runtime": 3612.2, "train/loss": 2.31, "perf/step_time_s": 3.412, "perf/tflops": 178.2}
    (step,) = the_run(write("wandb-summary.json", json.dumps(summary))).steps
    assert (step.number, step.seconds, step.tflops, step.loss) == (1000, 3.412, 178.2, 2.31)


def test_seconds_of_a_record_are_not_milliseconds(write: Write) -> None:
    rows = [{"ts": f"2025-01-01T00:00:0{2 * n}", "step": n, "loss": 9.1, "dt": 2.11, "tps": 248000} for n in (1, 2, 3)]
    run = the_run(write("log.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert [step.seconds for step in run.steps] == [2.11] * 3
    assert run.steps[0].tokens_per_second is None
