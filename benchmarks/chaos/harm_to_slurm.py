"""Scenarios: daemons are killed, nodes lost, the accounting is gone, answers get lost."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.chaos.scenario import scenario
from benchmarks.chaos.workbench import PATIENCE_SECONDS, ChaosWorkbench
from launcher.slurm.job_status import IN_BOOKS_SECONDS
from train_core.trial.measurement import Fault

NO_ACCOUNTING = 'echo "Slurm accounting storage is disabled" >&2; exit 1'
ANSWER_LOST = '/usr/bin/sbatch "$@"; echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1'


@scenario("kill -9 of slurmd on a node with running jobs, and its return", repetitions=1, alone=True)
def slurmd_killed(bench: ChaosWorkbench) -> None:
    bench.train(seconds=8)
    node = bench.executions()[0].node
    bench.harm(bench.cluster.kill, f"slurmd.{node}")
    bench.advance()
    bench.cluster.restore()
    bench.finish()


@scenario("kill -9 of slurmctld while jobs run, and its return", repetitions=1, alone=True)
def slurmctld_killed_while_jobs_run(bench: ChaosWorkbench) -> None:
    bench.train(seconds=5)
    bench.harm(bench.cluster.kill, "slurmctld")
    bench.advance()
    bench.cluster.restore()
    bench.finish(seconds=PATIENCE_SECONDS + IN_BOOKS_SECONDS)


@scenario("kill -9 of slurmctld in the second after it took the jobs, and its return", repetitions=2, alone=True)
def slurmctld_killed_after_submission(bench: ChaosWorkbench) -> None:
    bench.begin(seconds=2)
    time.sleep(bench.chance.uniform(0, 1))
    bench.harm(bench.cluster.kill, "slurmctld")
    bench.cluster.restore()
    bench.finish(seconds=PATIENCE_SECONDS + IN_BOOKS_SECONDS)


@scenario("kill -9 of slurmdbd, and its return", repetitions=1, alone=True)
def slurmdbd_killed(bench: ChaosWorkbench) -> None:
    bench.begin(seconds=3)
    bench.harm(bench.cluster.kill, "slurmdbd")
    bench.until_complete(*bench.names)
    bench.advance()
    bench.cluster.restore()
    bench.finish()


@scenario("a node goes down and comes back; Slurm requeues", repetitions=1, alone=True)
def node_down(bench: ChaosWorkbench) -> None:
    bench.train(seconds=8)
    with bench.without(bench.executions()[0].node):
        bench.advance()
    bench.finish()


@scenario("a node goes down and comes back; Slurm may not requeue", repetitions=1, alone=True)
def node_down_without_requeue(bench: ChaosWorkbench) -> None:
    bench.order(seconds=8)
    bench.start(extra_sbatch={"no-requeue": True})
    bench.until_running()
    with bench.without(bench.executions()[0].node):
        bench.advance()
    bench.order(seconds=1)
    bench.finish()
    lost = [attempt for each in bench.sweep.read() for attempt in each.earlier_attempts]
    assert {attempt.fault for attempt in lost} == {Fault.NODE}, lost


@scenario("no accounting: sacct is refused", repetitions=1)
def accounting_off(bench: ChaosWorkbench) -> None:
    bench.order({bench.names[0]: {"end": "kills itself"}})
    with stand_in(bench.sweep.folder.path, "sacct", NO_ACCOUNTING):
        bench.num_faults += 1
        bench.start()
        bench.settle()
        assert bench.measurement_of(bench.names[0]).why is Fault.KILLED
        bench.retry()


@scenario("sbatch takes the jobs, and its answer is lost", repetitions=2)
def answer_of_sbatch_lost(bench: ChaosWorkbench) -> None:
    bench.order(seconds=1)
    with stand_in(bench.sweep.folder.path, "sbatch", ANSWER_LOST):
        bench.num_faults += 1
        bench.start()
    bench.finish()


@scenario("squeue and sacct answer nothing, late, or half", repetitions=1)
def tools_out_of_order(bench: ChaosWorkbench) -> None:
    bench.begin(seconds=3)
    for script in ("exit 1", '/usr/bin/squeue "$@" | head -c 40', "echo 'maintenance on Sunday'; exit 1"):
        with stand_in(bench.sweep.folder.path, "squeue", script):
            bench.harm(bench.advance)
    bench.finish()


@contextmanager
def stand_in(beside: Path, tool: str, script: str) -> Iterator[None]:
    """A script takes the place of one of Slurm's commands, for this process."""
    folder = Path(f"{beside}-tools")
    folder.mkdir(exist_ok=True)
    path = folder / tool
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before
        path.unlink()
