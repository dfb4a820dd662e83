"""`trisweep diagnose` as a person runs it: from a log to what to change, and what it writes."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from cli.commands.diagnose.command import diagnoses_of
from tests.diagnose.made_up import CORE, SIZES, dump, megatron_steps
from tests.forked_command import run_forked

SLOW = {**CORE, "overlap_grad_reduce": False, "tp_comm_overlap": True}
TIMES = [59.0, *[30.0, 30.2, 29.8] * 5]


def trisweep(*arguments: str, cwd: Path, width: int = 100) -> subprocess.CompletedProcess[str]:
    return run_forked(("diagnose", *arguments), cwd, {**os.environ, "COLUMNS": str(width)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.log").write_text(SIZES + dump(SLOW) + megatron_steps(TIMES))
    better = {**SLOW, "recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None}
    (tmp_path / "better.log").write_text(SIZES + dump(better) + megatron_steps([each * 0.8 for each in TIMES]))
    return tmp_path


def test_a_log_of_megatron_becomes_a_diagnosis_in_a_terminal(folder: Path) -> None:
    done = trisweep("run.log", "cluster=dgx-h100", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
    words = " ".join(done.stdout.split())
    for said in (
        "What was understood",
        "7.40 billion parameters: 32 layers of 4,096 (32 heads, 8 of",
        "tp4-pp2-dp2-mb1-gb128-sp-zero1-full",
        "run.log:",
        "30.0 s, the middle of 15 lines",
        "1 line left out, up to 59.0 s",
        "slower than its configuration explains",
        "the backward pass computes whole layers again, beside free memory",
        "because recompute = full",
        "not explained",
        "to paste: --",
        "without --recompute-granularity",
    ):
        assert said in words


def test_what_is_missing_is_asked_for_by_name_and_nothing_is_guessed(folder: Path) -> None:
    done = trisweep("run.log", cwd=folder)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "missing gpu: what `nvidia-smi -L` prints. Say it as cluster=dgx-h100" in words
    assert "no prediction" in words


def test_two_runs_are_told_what_differs_and_how_much_of_it_is_priced(folder: Path) -> None:
    done = trisweep("run.log", "better.log", "cluster=dgx-h100", cwd=folder)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.partition("From run.log to better.log")[2].split())
    assert "recompute full -> none" in words
    assert "measured 30 s, then 24 s a step (-20.0%)" in words
    assert "of what was measured" in words


def test_its_row_is_priced_by_estimate(folder: Path) -> None:
    done = trisweep("run.log", "cluster=dgx-h100", "--row", cwd=folder)
    (row,) = csv.DictReader(done.stdout.splitlines())
    assert (row["tp"], row["recompute"], float(row["iter_time_s"])) == ("4", "full", 30.0)
    (folder / "row.csv").write_text(done.stdout)
    estimated = run_forked(("estimate", "row.csv"), folder, os.environ)
    assert "1 of 1 row priced" in estimated.stdout


def test_the_document_says_where_each_fact_is_from(folder: Path) -> None:
    done = trisweep("run.log", "cluster=dgx-h100", "--json", cwd=folder)
    document = json.loads(done.stdout)
    (run,) = document["runs"]
    assert document["document"] == "diagnosis"
    assert run["columns"]["recompute"]["file"] == "run.log"
    line = run["columns"]["recompute"]["line"]
    assert "recompute_granularity" in (folder / "run.log").read_text().splitlines()[line - 1]
    assert run["verdict"] == "slower than its configuration explains"
    assert run["proposals"][0]["time_ratio"] < 0.98


def test_its_sweep_has_the_program_and_the_flags_of_the_users_script(folder: Path) -> None:
    script = "torchrun --nproc_per_node=8 --nnodes=2 my_pretrain.py --data-path /data/mine --num-layers 32 --bf16\n"
    (folder / "run.sh").write_text(script)
    done = trisweep("run.log", "run.sh", "cluster=dgx-h100", "--sweep", "conf/sweep/mine.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    trainer = yaml.safe_load((folder / "conf" / "sweep" / "mine.yaml").read_text())["trainer"]
    assert trainer["command"] == ["my_pretrain.py"]
    assert trainer["flags"]["data-path"] == "/data/mine"
    assert trainer["flags"]["mock-data"] is None
    assert "num-layers" not in trainer["flags"]


def test_its_calibration_writes_a_cluster_and_its_sweep_a_file_that_plans(folder: Path) -> None:
    (folder / "conf" / "cluster").mkdir(parents=True)
    config = ("--config-dir", "conf")
    done = trisweep("run.log", "cluster=dgx-h100", "--calibrate", "ours", *config, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "conf" / "cluster" / "ours.yaml").exists(), done.stdout
    done = trisweep("run.log", "cluster=dgx-h100", "--sweep", "conf/sweep/proposals.yaml", *config, cwd=folder)
    assert done.returncode == 0, done.stderr
    points = yaml.safe_load((folder / "conf" / "sweep" / "proposals.yaml").read_text())["sweep"]["points"]
    assert points
    planned = run_forked(("plan", "proposals", "--json", *config), folder, os.environ)
    assert planned.returncode == 0, planned.stderr
    reasons = [
        point["infeasible_reason"] for point in json.loads(planned.stdout)["points"] if "infeasible_reason" in point
    ]
    assert not any(reasons)
    again = trisweep("run.log", "cluster=dgx-h100", "--sweep", "conf/sweep/proposals.yaml", *config, cwd=folder)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "No file of a run was named"),
        (("cluster=dgx-h100",), "No file of a run was named"),
        (("absent.log",), "absent.log"),
        (("run.log", "tensor=8"), "tensor"),
        (("run.log", "--calibrate", "ours"), "has both a measured step and a prediction"),
        (("run.log", "--sweep", "proposals.yaml"), "nothing says gpu"),
        (("run.log", "--sweep", "proposals.txt"), "is not the name of a YAML file"),
    ],
)
def test_a_wrong_word_is_one_message(words: tuple[str, ...], said: str, folder: Path) -> None:
    done = trisweep(*words, cwd=folder)
    assert done.returncode == 2, done.stdout
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_the_answer_becomes_a_page_and_markdown_with_every_section_of_the_terminal(folder: Path) -> None:
    done = trisweep("run.log", "better.log", "cluster=dgx-h100", "--report", "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Written: out/diagnosis.html." in " ".join(done.stderr.split())
    texts = [(folder / "out" / name).read_text() for name in ("diagnosis.md", "diagnosis.html")]
    for text in texts:
        for said in ("What was understood", "run.log: Suspects, each with its price", "From run.log to better.log"):
            assert said in text
        assert "computes whole layers again, beside free memory" in text
    assert texts[0].count("## ") == texts[1].count("<h2")


def test_a_page_that_cannot_be_written_is_one_message(folder: Path) -> None:
    (folder / "out").write_text("a file")
    done = trisweep("run.log", "cluster=dgx-h100", "--report", "out", cwd=folder)
    assert done.returncode != 0
    assert "--report out: diagnosis.md cannot be written" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_two_runs_of_one_file_are_compared_and_starts_again_are_not(tmp_path: Path) -> None:
    path = tmp_path / "both.log"
    path.write_text(megatron_steps([2.5] * 5) + megatron_steps([2.1] * 5))
    assert [each.measured and each.measured.step_seconds for each in diagnoses_of([str(path)])] == [2.5, 2.1]
    path.write_text(megatron_steps([2.5] * 2) + megatron_steps([2.1] * 2))
    assert len(diagnoses_of([str(path)])) == 2
    path.write_text(megatron_steps([2.5] * 5) + megatron_steps([2.1] * 4, first=20))
    assert [each.measured and each.measured.step_seconds for each in diagnoses_of([str(path)])] == [2.5]
