"""Sweeps whose points are asked for one after another, through Slurm: by a job of its own, and a step at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.slurm.job_status import live_job
from sweeps.folder.journal import History, Journal
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.forked_command import run_forked
from tests.slurm.test_other_trainer import PROGRAM
from tests.waiting import wait_for
from train_core.trial.measurement import Outcome

TRISWEEP = Path(sys.executable).with_name("trisweep")
ADAPTIVE = (
    *("smoke", "cluster=local", "cluster.num_nodes=4", "slurm.time_limit_minutes=5", "controller.poll_seconds=0.5"),
    *("search=bayes", "search.space=listed", "search.min_gain=0", "sweep.max_trials=2", "tracking.live_seconds=null"),
    *("trainer=command", "trainer.start=once", "training.num_steps=3", "training.num_warmup_steps=1"),
)
GOES_ON = 75

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm_cluster")]


def trisweep(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_forked(arguments, cwd, os.environ, umask=0o077)


def adaptive(path: Path) -> tuple[str, ...]:
    """The words of a sweep whose points are searched, and whose program, which it writes there, takes no time."""
    program = path / "program.py"
    program.write_text(PROGRAM)
    return (*ADAPTIVE, f"trainer.command=[{sys.executable},{program},once,'false']")


def folder_in(path: Path) -> SweepFolder:
    return SweepFolder(path / "runs" / "smoke-local")


def history(folder: SweepFolder) -> History:
    return History.of(Journal(folder.journal).read_new())


@pytest.mark.slow
def test_a_job_goes_on_with_the_sweep_there_is_only_one_and_what_was_killed_is_continued(tmp_path: Path) -> None:
    started = trisweep("sweep", *adaptive(tmp_path), "controller=slurm", cwd=tmp_path)
    assert started.returncode == 0, started.stderr
    folder = folder_in(tmp_path)
    first = live_job(folder.controller)
    assert first is not None
    assert f"Job {first.job_id} goes on" in started.stdout
    again = trisweep("sweep", *adaptive(tmp_path), "controller=slurm", cwd=tmp_path)
    assert f"Job {first.job_id} goes on" in again.stdout

    wait_for(lambda: history(folder).courses, 120)  # the first trial has been submitted
    subprocess.run(["scancel", "--signal=KILL", "--full", first.job_id], check=True)
    wait_for(lambda: live_job(folder.controller) is None, 120)

    deadline = time.monotonic() + 120
    while (step := trisweep("advance", "smoke", cwd=tmp_path)).returncode == GOES_ON:
        assert time.monotonic() < deadline, step.stdout
        time.sleep(1)
    assert step.returncode == 0, step.stderr
    assert "The sweep has ended: " in step.stdout
    readings = Sweep.stored_in(folder).read()
    baseline, other = (each.outcome for each in readings if each.trial.selected)
    # On a machine that other tests load, the search may find the second clearly slower, and end it early.
    assert (baseline, other in (Outcome.COMPLETED, Outcome.PRUNED)) == (Outcome.COMPLETED, True)
    assert [course.num_attempts for course in history(folder).courses.values()] == [1, 1]


@pytest.mark.slow
def test_the_foreground_leaves_its_jobs_when_it_is_interrupted_and_cancel_ends_them(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [TRISWEEP, "sweep", *adaptive(tmp_path), "+slurm.extra_sbatch.hold=true"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    folder = folder_in(tmp_path)
    wait_for(lambda: history(folder).courses, 120)
    held = trisweep("advance", "smoke", cwd=tmp_path)
    assert f"in use by process {process.pid} on {os.uname().nodename}" in held.stderr
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "The jobs go on" in said
    assert "trisweep advance smoke cluster=local" in said
    assert "trials cancelled in" in trisweep("cancel", "smoke", cwd=tmp_path).stdout
    step = trisweep("advance", "smoke", cwd=tmp_path)
    assert (step.returncode, "it was cancelled" in step.stdout) == (0, True)
