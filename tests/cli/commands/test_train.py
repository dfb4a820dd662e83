"""`trisweep train`: one experiment, or the long training of a sweep's best plan."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Command


@pytest.mark.slow
def test_the_best_plan_trains_on_and_its_losses_are_in_mlflow(finished: Path, trisweep: Command) -> None:
    done = trisweep("train", "--from-best", "smoke", "--here", "training.num_steps=12", cwd=finished)
    assert done.returncode == 0, done.stderr
    assert "Best plan: tp" in done.stdout
    assert "step 12 of 12, loss " in done.stdout
    assert "MLflow: training smoke-local is up to date" in done.stdout
    query = (
        "SELECT metrics.step FROM metrics JOIN runs USING (run_uuid)"
        " WHERE runs.name = 'training smoke-local' AND metrics.key = 'step/loss' ORDER BY metrics.step"
    )
    with closing(sqlite3.connect(finished / "runs" / "mlflow.db")) as store:
        assert [step for (step,) in store.execute(query)] == list(range(1, 13))


@pytest.mark.slow
def test_a_training_that_is_refused_leaves_nothing_that_another_would_go_on_with(
    finished: Path, trisweep: Command, tmp_path: Path, no_slurm: dict[str, str]
) -> None:
    for name in ("sbatch", "srun", "scontrol"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o700)
    asked = ("train", "--from-best", "smoke", "cluster=local", "training.num_steps=12", "--name", "refused")
    slurm = {"PATH": f"{tmp_path}:{no_slurm['PATH']}"}
    refused = trisweep(*asked, "slurm.time_limit_minutes=2", cwd=finished, **slurm)
    assert refused.returncode == 2
    assert "slurm.time_limit_minutes = 2: is too short" in refused.stderr
    assert not (finished / "runs" / "train" / "refused" / "trial.json").exists()


@pytest.mark.slow
def test_a_store_that_takes_nothing_is_said_and_takes_no_end_from_a_training(
    finished: Path, trisweep: Command, tmp_path: Path
) -> None:
    shutil.copytree(finished / "runs", tmp_path / "runs")
    (tmp_path / "runs" / "mlflow.db").write_text("no database " * 100)
    asked = ("train", "--from-best", "smoke", "--here", "training.num_steps=4", "--name", "untaken")
    done = trisweep(*asked, cwd=tmp_path)
    assert "COMPLETED: loss " in done.stdout
    assert "`trisweep reindex` makes it anew" in done.stderr
    assert done.returncode == 1


def test_a_training_alone_is_shown_and_not_started(trisweep: Command, tmp_path: Path) -> None:
    done = trisweep("train", "--dry-run", "parallel.world_size=2", "training.num_steps=7", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dp2-mb1-gb8, on 2 x CPU rank of local" in done.stdout
    assert re.search(r"^7 steps of [\d.e-]+ s \(predicted\): <1s in all$", done.stdout, re.MULTILINE)
    assert "2 ranks would train on this machine" in done.stdout
    assert list(tmp_path.iterdir()) == []
    refused = trisweep("train", "--dry-run", "output_dir=/proc/x", cwd=tmp_path)
    assert refused.returncode == 2
    assert "cannot be written" in refused.stderr
    assert trisweep("train", "--dry-run", "model=gpt-22b", cwd=tmp_path).returncode == 2


@pytest.mark.slow
def test_the_long_job_of_the_best_plan_is_shown_with_its_script(finished: Path, trisweep: Command) -> None:
    before = sorted(finished.rglob("*"))
    asked = ("train", "--from-best", "smoke", "training.num_steps=100000", "--name", "shown", "--dry-run")
    done = trisweep(*asked, "--here", cwd=finished)
    assert done.returncode == 0, done.stderr
    assert "Best plan: tp" in done.stdout
    assert "s (as the sweep measured): " in done.stdout
    assert "would train on this machine" in done.stdout
    job = trisweep(*asked, "cluster=local", "slurm.partition=long", cwd=finished)
    assert job.returncode == 0, job.stderr
    script = job.stdout.split("#!/bin/bash")[1]
    for line in ("--partition=long", "--signal=USR2@180", "--requeue", "--job-name=trisweep-shown-TOKEN", "--time=30"):
        assert f"\n#SBATCH {line}\n" in script
    assert "slurm.account: your default account is charged" in script
    assert re.search(r"\nAbout [1-9]\d* runs? of it at slurm.time_limit_minutes = 30, by this", script)
    assert sorted(finished.rglob("*")) == before
