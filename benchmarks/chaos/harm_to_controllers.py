"""Scenarios: the job that goes on with a sweep loses its node, meets its time limit, or is requeued or ended.

Here commands and trainings are the real ones, because such a job takes up what `trisweep sweep` began.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.chaos.cluster import command, wait_for
from benchmarks.chaos.scenario import scenario
from benchmarks.chaos.workbench import ChaosWorkbench
from launcher.slurm.job_status import live_job
from sweeps.folder.journal import History
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder

SWEEP = (
    *("sweep", "smoke", "cluster=local", "cluster.num_nodes=4", "slurm.time_limit_minutes=5"),
    *("search=bayes", "search.space=listed", "search.min_gain=0", "search.pruner=none", "sweep.max_trials=3"),
    *("controller=slurm", "controller.poll_seconds=0.5"),
)
SECONDS = 400.0


@scenario("controller=slurm: its job is killed, requeued and cancelled, one after another", repetitions=1)
def controller_job_harmed(bench: ChaosWorkbench) -> None:
    _begin(bench)
    for harm in (["scancel", "--signal=KILL", "--full"], ["scontrol", "requeue"], ["scancel"]):
        _wait_for_a_controller(bench)
        time.sleep(bench.chance.uniform(0, 3))
        if (job := live_job(bench.sweep.folder.controller)) is None:
            break  # the sweep has ended
        bench.harm(command, *harm, job.job_id, check=False)
        if harm[0] == "scancel":
            wait_for(lambda: live_job(bench.sweep.folder.controller) is None)
    _finish(bench)


@scenario("controller=slurm: its job hangs, and comes to its time limit", repetitions=1)
def controller_out_of_time(bench: ChaosWorkbench) -> None:
    job_id = _begin_with_a_controller(bench)
    # Stopped, it cannot do what it does when Slurm warns it, and Slurm ends it.
    bench.harm(command, "scancel", "--signal=STOP", "--full", job_id)
    bench.harm(command, "scontrol", "update", f"jobid={job_id}", "TimeLimit=1")
    wait_for(lambda: live_job(bench.sweep.folder.controller) is None, SECONDS)
    _finish(bench)


@scenario("controller=slurm: the node of its job goes down", repetitions=1, alone=True)
def controller_loses_its_node(bench: ChaosWorkbench) -> None:
    job_id = _begin_with_a_controller(bench)
    node = command("squeue", "--noheader", "--format=%N", f"--jobs={job_id}").strip()
    with bench.without(node):
        pass
    _finish(bench)


def _begin(bench: ChaosWorkbench) -> None:
    """The command's folder takes the place of the sweep that other scenarios use."""
    folder = bench.sweep.folder.path
    _trisweep(folder, *SWEEP)
    bench.take(Sweep.stored_in(SweepFolder(folder / "runs" / "smoke-local")))


def _begin_with_a_controller(bench: ChaosWorkbench) -> str:
    """Begin, and return the controller's job."""
    _begin(bench)
    _wait_for_a_controller(bench)
    job = live_job(bench.sweep.folder.controller)
    assert job is not None
    return job.job_id


def _wait_for_a_controller(bench: ChaosWorkbench) -> None:
    """Until the job runs, or the sweep has ended without it."""

    def runs() -> bool:
        job = live_job(bench.sweep.folder.controller)
        return bool(job and job.state.name == "RUNNING") or bool(History.kept_in(bench.sweep.folder).finished)

    if live_job(bench.sweep.folder.controller) is None and not History.kept_in(bench.sweep.folder).finished:
        _trisweep(bench.sweep.folder.path.parents[1], *SWEEP)
    wait_for(runs, SECONDS)


def _finish(bench: ChaosWorkbench) -> None:
    """Give the command again, as a person would, until the sweep has ended; no trial took a second attempt."""
    while not History.kept_in(bench.sweep.folder).finished:
        _wait_for_a_controller(bench)
        wait_for(
            lambda: live_job(bench.sweep.folder.controller) is None or History.kept_in(bench.sweep.folder).finished,
            SECONDS,
        )
    bench.take(Sweep.stored_in(bench.sweep.folder))
    courses = History.kept_in(bench.sweep.folder).courses
    assert all(course.num_attempts == 1 for course in courses.values()), courses


def _trisweep(folder: Path, *words: str) -> None:
    program = Path(sys.executable).with_name("trisweep")
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
