"""`trisweep sweep` on this machine, and what it shows of jobs elsewhere."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import SMOKE, Command
from tests.messages import said


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02\xff\xfe" * 400, None], ids=["empty", "binary", "folder"])
def test_data_that_is_empty_or_not_text_stops_the_sweep_at_once(
    content: bytes | None, tmp_path: Path, trisweep: Command
) -> None:
    data = tmp_path / "data"
    if content is None:
        data.mkdir()
    else:
        data.write_bytes(content)
    work = tmp_path / "work"
    work.mkdir()
    done = trisweep("sweep", "smoke", "--here", f"data.path={data}", cwd=work)
    said(done, "data.path")
    assert not list(work.rglob("*.json"))


@pytest.mark.slow
def test_an_output_folder_that_is_a_file_is_said_so(tmp_path: Path, trisweep: Command) -> None:
    (tmp_path / "taken").write_text("mine")
    done = trisweep("sweep", "smoke", "--here", "output_dir=taken", cwd=tmp_path)
    said(done, "output_dir")
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.slow
def test_a_time_limit_of_jobs_is_said_to_hold_for_no_trial_of_this_machine(finished: Path, trisweep: Command) -> None:
    done = trisweep("sweep", *SMOKE, "--here", "slurm.time_limit_minutes=1", cwd=finished)
    assert done.returncode == 0, done.stderr
    assert "slurm.time_limit_minutes is of jobs" in " ".join(done.stderr.split())


def test_a_sweep_without_a_proxy_names_the_cluster_to_choose_and_the_replay(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("sweep", "frontier-study", "--here", "--json", cwd=tmp_path)
    assert done.stdout == ""
    said(done, "sweep.proxy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_dry_run_needs_no_slurm_and_writes_nothing(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("sweep", "175b", "cluster=frontier", "slurm.account=ABC123", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "GPU-hours at most" in done.stdout
    texts = done.stdout.split("#!/bin/bash")[1:]
    assert len(texts) == len({re.search(r"--nodes=(\d+)", text)[1] for text in texts})  # type: ignore[index]
    for text in texts:
        assert "--ntasks-per-node=8" in text
        assert "--account=ABC123" in text
        assert "module load aws-ofi-rccl" in text
        assert "--gpu-bind=closest" in text
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_shows_the_controllers_job_and_the_arrays_that_it_would_submit_first(
    tmp_path: Path, trisweep: Command
) -> None:
    limited = ("cluster=local", "controller=slurm", "search.max_concurrent_trials=2", "slurm.array_parallelism=1")
    done = trisweep("sweep", "smoke", *limited, "--dry-run", cwd=tmp_path)
    names = re.findall(r"--job-name=(\S+)", done.stdout)
    assert names == ["trisweep-smoke-controller-TOKEN", "trisweep-smoke-TOKEN", "trisweep-smoke-TOKEN"], done.stderr
    assert "--array" not in done.stdout
    said = " ".join(done.stdout.split())
    assert "2 trials in 2 job arrays would be submitted first, 1.5 core-hours at most. Nothing was submitted." in said
    assert "3 trials held back: search.max_concurrent_trials = 2." in said
    assert list(tmp_path.iterdir()) == []
    seeds = ("sweep.points=[{training.seed: 1}, {training.seed: 2}, {training.seed: 3}]", "--json")
    done = trisweep("sweep", "smoke", *limited, *seeds, "--dry-run", cwd=tmp_path)
    assert "#SBATCH --array=0-1%1\n" in done.stderr
    assert len(json.loads(done.stdout)["would_run"]) == 4


def test_a_dry_run_of_a_search_shows_its_baseline_and_how_many_points_may_follow(
    tmp_path: Path, trisweep: Command
) -> None:
    of_search = ("search=bayes", "search.space=listed", "sweep.max_trials=2")
    done = trisweep("sweep", "smoke", "cluster=local", *of_search, "--dry-run", cwd=tmp_path)
    said = " ".join(done.stdout.split())
    assert "1 point at full size, 1 fit." in said, done.stderr
    assert "Further points come from the search." in said
    assert "The search chooses up to 1 further point; each counts at its time limit until it ends." in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_dry_run_of_an_allocation_counts_its_trials(tmp_path: Path, trisweep: Command) -> None:
    limits = ("sweep.max_trials=1", "launcher.time_limit_minutes=600")
    done = trisweep("sweep", "175b", "cluster=frontier", "launcher=allocation", *limits, "--dry-run", cwd=tmp_path)
    assert "1 trial as steps of one allocation of" in " ".join(done.stdout.split()), done.stderr


def test_an_allocation_of_more_nodes_than_the_cluster_has_is_refused(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep(
        "sweep", "175b", "cluster=selene", "launcher=allocation", "launcher.num_nodes=9999", "--dry-run", cwd=tmp_path
    )
    said(done, "launcher.num_nodes")


def test_the_hours_of_a_small_allocation_are_not_rounded_to_none(tmp_path: Path, trisweep: Command) -> None:
    few = ("cluster=local", "slurm.time_limit_minutes=1", "launcher=allocation", "launcher.time_limit_minutes=2")
    done = trisweep("sweep", "smoke", *few, "--dry-run", cwd=tmp_path)
    assert re.search(r"\(0\.\d+ core-hours at most each time it runs\)", " ".join(done.stdout.split())), done.stdout


def test_a_dry_run_says_which_limit_is_too_short(tmp_path: Path, trisweep: Command) -> None:
    short = ("cluster=frontier", "slurm.time_limit_minutes=10")
    done = trisweep("sweep", "weak-175b", *short, "--dry-run", cwd=tmp_path)
    remedy = "Raise slurm.time_limit_minutes, or measure fewer steps with training.num_steps."
    assert f"Predicted to take longer than the time limit: 4 trials. {remedy}" in " ".join(done.stdout.split())


def test_a_dry_run_for_this_machine_prints_no_text_for_sbatch(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("sweep", "smoke", "--dry-run", "--json", cwd=tmp_path)
    assert "SBATCH" not in done.stderr
    assert "5 trials would run on this machine:" in done.stderr
    assert len(json.loads(done.stdout)["would_run"]) == 5
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_measures_every_point_and_leaves_report_and_mlflow(finished: Path) -> None:
    folder = finished / "runs" / "smoke-local"
    measured = [json.loads(path.read_text()) for path in folder.glob("trials/*/measurement.json")]
    assert [one["outcome"] for one in measured] == ["COMPLETED"] * 3
    losses = [one["performance"]["final_loss"] for one in measured]
    assert max(losses) - min(losses) < 1e-4 * max(losses)
    for suffix in ("md", "csv", "html"):
        assert (folder / f"report.{suffix}").stat().st_size > 0
    assert (finished / "runs" / "mlflow.db").exists()


@pytest.mark.slow
def test_a_finished_sweep_is_not_run_again(finished: Path, trisweep: Command) -> None:
    folder = finished / "runs" / "smoke-local"
    before = {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/measurement.json")}
    done = trisweep("sweep", *SMOKE, "--here", cwd=finished)
    assert done.returncode == 0
    assert "started" not in done.stdout
    assert "1 run written" in done.stdout  # the sweep's own, whose report lists this command too
    assert {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/measurement.json")} == before


def test_a_dry_run_leaves_out_what_is_measured(finished: Path, trisweep: Command) -> None:
    again = trisweep("sweep", *SMOKE, "--here", "--dry-run", cwd=finished)
    assert re.search(r"\d trials are measured already; --remeasure does so again\.\n0 trials would run", again.stdout)
    anew = trisweep("sweep", *SMOKE, "--here", "--remeasure", "--dry-run", "--json", cwd=finished)
    assert len(json.loads(anew.stdout)["would_run"]) > 1


@pytest.mark.slow
def test_a_sweep_that_only_mlflow_did_not_take_is_not_said_to_have_been_refused(
    finished: Path, tmp_path: Path, trisweep: Command
) -> None:
    shutil.copytree(finished / "runs", tmp_path / "runs")
    (tmp_path / "runs" / "mlflow.db").unlink(missing_ok=True)
    (tmp_path / "runs" / "mlflow.db").mkdir()
    done = trisweep("sweep", *SMOKE, "--here", "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "trisweep: The MLflow store" in done.stderr
    assert json.loads(done.stdout)["counts"]["COMPLETED"] == 3
