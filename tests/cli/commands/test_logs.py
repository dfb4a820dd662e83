"""`trisweep logs`: which log is printed, and how one is followed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.messages import said


def test_the_log_goes_to_stdout_and_its_name_to_stderr(finished: Path, trisweep: Command) -> None:
    done = trisweep("logs", "smoke", "tp2-pp1", cwd=finished)
    assert done.returncode == 0, done.stderr
    assert "Job completed successfully" in done.stdout
    assert "step 4/4: loss" in done.stdout
    assert done.stderr.startswith("==> tp2-pp1-dp1-mb1-gb8")


def test_without_a_name_the_one_that_failed_is_chosen(finished: Path, tmp_path: Path, trisweep: Command) -> None:
    shutil.copytree(finished / "runs", tmp_path / "runs")
    (trial,) = (tmp_path / "runs/smoke-local/trials").glob("tp1-pp1-dp2-*")
    measurement = trial / "measurement.json"
    measurement.write_text(measurement.read_text().replace('"COMPLETED"', '"FAILED"'))
    done = trisweep("logs", "smoke", cwd=tmp_path)
    assert done.stderr.startswith("==> tp1-pp1-dp2-"), done.stderr


def test_a_training_that_printed_where_it_was_started_has_its_steps(
    finished: Path, tmp_path: Path, trisweep: Command
) -> None:
    shutil.copytree(finished / "runs", tmp_path / "runs")
    (trial,) = (tmp_path / "runs/smoke-local/trials").glob("*zero1-c*")
    shutil.rmtree(trial / "logs")
    (trial / "submission.json").unlink()
    done = trisweep("logs", "smoke", "zero1-c", cwd=tmp_path)
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [f"step {n}/4" for n in range(1, 5)]


def test_following_a_trial_that_has_ended_prints_it_and_ends(finished: Path, trisweep: Command) -> None:
    done = trisweep("logs", "smoke", "zero1-c", "--follow", cwd=finished)
    assert done.returncode == 0
    assert [line.split(":")[0] for line in done.stdout.splitlines()[-4:]] == [f"step {n}/4" for n in range(1, 5)]
    assert "ended: COMPLETED" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("tp1",), ""),
        (("absent",), ""),
        (("lr=0.01",), ""),
        (("output_dir=elsewhere",), ""),
        (("model_from=absent.json",), "model_from"),
        (("tp2-pp1", "tp1-pp1"), ""),
        (("infeasible",), ""),
        (("tp2-pp1", "--rank", "9"), ""),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_log_that_is_not_there_is_refused(
    arguments: tuple[str, ...], key: str, finished: Path, trisweep: Command
) -> None:
    done = trisweep("logs", "smoke", *arguments, cwd=finished)
    assert done.stdout == ""
    said(done, key, recorded=False)
