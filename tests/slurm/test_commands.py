"""The commands on a login node: submit and return, ask, report, cancel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.forked_command import run_forked

TRISWEEP = Path(sys.executable).with_name("trisweep")
CHOICE = ("smoke", "cluster=local", "slurm.time_limit_minutes=5", "slurm.array_parallelism=8")
SHAPES = (
    *CHOICE,
    "sweep.points=[{parallel.world_size:2,parallel.zero_stage:1}]",
    "cluster.devices_per_node=1",
    "cluster.num_nodes=4",
)
"""1 x 1 and, on nodes of one device, 2 x 1."""

JOB = re.compile(r"^  job (\d+):", re.MULTILINE)
PATIENCE_SECONDS = 200

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm_cluster")]


def trisweep(*arguments: str, cwd: Path) -> str:
    done = run_forked(arguments, cwd, {**os.environ, "COLUMNS": "100"}, umask=0o002)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_sweep_from_submission_to_report(tmp_path: Path) -> None:
    submitted = trisweep("sweep", *SHAPES, cwd=tmp_path)
    assert "2 trials submitted" in submitted
    assert submitted.count("  job ") == 2
    assert "0 trials submitted" in trisweep("sweep", *SHAPES, cwd=tmp_path)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "2 COMPLETED" not in (said := trisweep("status", "smoke", cwd=tmp_path)):
        assert time.monotonic() < deadline, said
        assert "FAILED" not in said
        time.sleep(4)  # the command itself takes the cores that the trials need
    of_jobs = ["--noheader", "--allocations", "--format=State", f"--jobs={','.join(JOB.findall(submitted))}"]
    while subprocess.run(["sacct", *of_jobs], capture_output=True, text=True, check=True).stdout.count("COMPLETED") < 2:
        assert time.monotonic() < deadline, "the accounting never said that the jobs have ended"
        time.sleep(0.5)
    reported = trisweep("report", "smoke", cwd=tmp_path)
    assert reported.count("COMPLETED") == 2
    assert "3 runs written" in reported
    assert (tmp_path / "runs" / "smoke-local" / "report.html").exists()
    records = list(tmp_path.glob("runs/smoke-local/trials/*/slurm_job.json"))
    assert [json.loads(path.read_text())["State"] for path in records] == ["COMPLETED"] * 2
    assert "0 trials submitted" in trisweep("sweep", *SHAPES, cwd=tmp_path)
    assert "0 trials cancelled" in trisweep("cancel", "smoke", cwd=tmp_path)


def test_cancelled_trials_are_submitted_again(tmp_path: Path) -> None:
    elsewhere = "output_dir=elsewhere"
    held = (*CHOICE, "training.num_steps=100000", "parallel.world_size=2", "+slurm.extra_sbatch.hold=true", elsewhere)
    submitted = trisweep("sweep", *held, cwd=tmp_path)
    assert "4 trials submitted" in submitted
    assert f"  trisweep cancel smoke cluster=local {elsewhere}" in submitted
    written = [path for path in (tmp_path / "elsewhere").rglob("*") if not path.is_symlink()]
    assert not [path for path in written if path.stat().st_mode & 0o077], "jobs run what lies there"
    assert "4 trials cancelled" in trisweep("cancel", "smoke", elsewhere, cwd=tmp_path)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "4 CANCELLED" not in (said := trisweep("status", "smoke", elsewhere, cwd=tmp_path)):
        assert time.monotonic() < deadline, said
        time.sleep(1)
    assert "cancelled in Slurm" in said
    assert "4 trials submitted" in trisweep("sweep", *held, cwd=tmp_path)
    trisweep("cancel", "smoke", elsewhere, cwd=tmp_path)


def test_without_a_cluster_a_login_node_asks_which_one(tmp_path: Path) -> None:
    done = subprocess.run([TRISWEEP, "sweep", "175b"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Say which with cluster=NAME" in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []
