"""The judge of `make chaos` finds what is lost, twice or wrong by files alone; the page adds the runs of a commit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.chaos import page
from benchmarks.chaos.aftermath import Aftermath
from benchmarks.chaos.judge import Judgement, Wanted, judge
from benchmarks.chaos.page import ChaosRun, add

GOOD = {"outcome": "COMPLETED", "performance": {"step_seconds": 0.107, "final_loss": 12.0}}
DEEDS = "start a 12 0 99 node1\ncomplete a 12 0 99 node1\n"


def judged(
    folder: Path, told: Mapping[str, object] | None, deeds: str = DEEDS, row: str = "COMPLETED", **wanted: object
) -> Judgement:
    """The verdict on a sweep of one trial of seed 7, which job 12 completed."""
    trial = folder / "trials" / "a"
    trial.mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps({"trials": [{"trial_id": "a", "selected": True}]}))
    (trial / "trial.json").write_text(json.dumps({"experiment": {"training": {"seed": 7}}}))
    if told is not None:
        (trial / "measurement.json").write_text(json.dumps(told))
    (folder / "log").write_text(deeds)
    (folder / "report.csv").write_text(f"part,trial_id,outcome\ntrial,a,{row}\n")
    return judge(folder, folder / "log", folder / "report.csv", Wanted({}, **wanted))  # type: ignore[arg-type]


def test_a_result_of_its_own_trial_and_job_is_right(tmp_path: Path) -> None:
    assert judged(tmp_path, GOOD) == Judgement([], [], [])


@pytest.mark.parametrize("told", [None, {"outcome": "RUNNING"}, {"outcome": "FAILED", "cause": "?"}])
def test_a_finished_trial_without_its_result_is_lost(tmp_path: Path, told: Mapping[str, object] | None) -> None:
    assert judged(tmp_path, told, row=str((told or {}).get("outcome"))).lost


def test_a_second_completion_is_twice_unless_the_first_result_was_taken_away(tmp_path: Path) -> None:
    deeds = DEEDS + DEEDS.replace("12", "13")
    last = {"outcome": "COMPLETED", "performance": {"step_seconds": 0.107, "final_loss": 13.0}}
    assert judged(tmp_path / "1", last, deeds).twice == ["a"]
    assert judged(tmp_path / "2", last, deeds, num_forgotten=1) == Judgement([], [], [])
    assert judged(tmp_path / "3", GOOD, deeds, gone={"12"}).wrong, "the result is that of the job whose folder went"


@pytest.mark.parametrize(("number", "value"), [("step_seconds", 0.108), ("final_loss", 11.0)])
def test_the_numbers_of_another_trial_or_job_are_wrong(tmp_path: Path, number: str, value: float) -> None:
    numbers = {"step_seconds": 0.107, "final_loss": 12.0, number: value}
    assert judged(tmp_path, {"outcome": "COMPLETED", "performance": numbers}).wrong


def test_a_row_of_the_report_that_says_something_else_is_wrong(tmp_path: Path) -> None:
    assert judged(tmp_path, GOOD, row="FAILED").wrong


def test_the_page_adds_up_runs_of_one_commit_and_begins_anew_at_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "RUNS", tmp_path / "runs.jsonl")
    page.PAGE.touch()
    found = Aftermath(scenario="rank-killed", num_trials=4, num_faults=3, commands=("sweep",), seconds=9)
    for seed, commit in ((1, "old"), (2, "new"), (3, "new"), (3, "new")):
        where = {"date": "2026-01-01", "slurm": "slurm 22", "machine": "2 cores", "minutes": 9}
        add(ChaosRun(seed=seed, commit=commit, found=(found,), **where))
    text = page.PAGE.read_text()
    assert "Seed 2" in text
    assert "Seed 1" not in text
    assert "| kill -9 of one rank of two | `sweep` | 2 | 6 | 8 | 0 | 0 | 0 | 0 |" in text
