"""`trisweep status` of a sweep that has been measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import SMOKE, Command
from tests.messages import said


def test_status_shows_every_trial_within_80_columns(finished: Path, trisweep: Command) -> None:
    done = trisweep("status", "smoke", cwd=finished, COLUMNS="80")
    assert done.returncode == 0
    assert "3 COMPLETED, 1 INFEASIBLE" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_a_node_that_one_preflight_found_unfit_failed_one_trial(
    finished: Path, tmp_path: Path, trisweep: Command
) -> None:
    shutil.copytree(finished / "runs", tmp_path / "runs")
    (trial,) = (tmp_path / "runs/smoke-local/trials").glob("tp1-pp1-dp2-*")
    said = {"number": 1, "outcome": "NODE_FAILED", "fault": "PREFLIGHT", "nodes": ["n1"], "cause": "no GPU", "ended": 1}
    (trial / "attempts.jsonl").write_text(json.dumps(said) + "\n")
    done = trisweep("status", "smoke", cwd=tmp_path)
    assert "the node n1: 1 trial failed there, the last because no GPU" in " ".join(done.stdout.split()), done.stderr


def test_a_training_whose_file_is_damaged_is_named(finished: Path, tmp_path: Path, trisweep: Command) -> None:
    shutil.copytree(finished / "runs", tmp_path / "runs")
    training = tmp_path / "runs/train/long"
    training.mkdir(parents=True)
    (training / "trial.json").write_text('{"experiment": {"mod')
    done = trisweep("status", "smoke", cwd=tmp_path)
    assert "runs/train/long/trial.json is damaged" in " ".join(done.stdout.split()), done.stderr


def test_a_damaged_sweep_record_is_said_so(finished: Path, tmp_path: Path, trisweep: Command) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "runs" / "smoke-local" / "sweep.json").write_text("{")
    done = trisweep("status", "smoke", cwd=copy)
    said(done, "sweep.json")


@pytest.mark.slow
@pytest.mark.parametrize("command", [("status", "smoke"), ("sweep", *SMOKE, "--here"), ("cancel", "smoke")])
def test_a_path_with_brackets_is_printed_as_it_is(
    command: tuple[str, ...], finished: Path, tmp_path: Path, trisweep: Command
) -> None:
    shutil.copytree(finished / "runs", tmp_path / "[" / "x]" / "runs")
    done = trisweep(*command, "output_dir='[/x]/runs'", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[/x]/runs/smoke-local" in done.stdout
