"""Scenarios: a sweep in one allocation, which loses a node, its time, its controller, or Slurm itself for a while."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.chaos.cluster import Cluster, command, wait_for
from benchmarks.chaos.controller import Silent
from benchmarks.chaos.scenario import scenario
from benchmarks.chaos.workbench import NODES, OVERRIDES, PATIENCE_SECONDS, POLL_SECONDS, REFUSALS, ChaosWorkbench
from conf.compose.load import compose
from conf.compose.settings import LauncherSpec
from conf.overrides import Overrides
from conf.types.cluster_spec import ClusterSpec
from launcher.allocation.nodes import own_allocation
from launcher.allocation.sweep import run_inside, submit_allocation
from launcher.allocation.workplace import AllocationTimes
from train_core.trial.measurement import Fault, Outcome

NUM_NODES = 2
TIME_LIMIT_MINUTES = 10
ENDS_EARLY_SECONDS = 600.0 - 25.0
"""So long before its limit an allocation ends its trials, where the scenario is to see that after 25 s."""

STEP_SECONDS = 5


@scenario("an allocation loses a node while trials run in it and others wait", repetitions=1, alone=True)
def allocation_loses_a_node(bench: ChaosWorkbench) -> None:
    bench.order(seconds=8)
    job_id = _allocate(bench)
    assert job_id is not None
    wait_for(bench.executions)
    with bench.without(own_allocation({"SLURM_JOB_ID": job_id}).nodes[-1].name):
        wait_for(lambda: bench.executions("complete"))
    _finish(bench)


@scenario("kill -9 of slurmctld while an allocation starts steps, and its return", repetitions=1, alone=True)
def slurmctld_killed_during_an_allocation(bench: ChaosWorkbench) -> None:
    bench.order(seconds=6)
    _allocate(bench, num_nodes=1)
    wait_for(bench.executions)
    bench.harm(bench.cluster.kill, "slurmctld")
    time.sleep(POLL_SECONDS)
    bench.cluster.restore()
    _finish(bench)


@scenario("scancel of an allocation; the next one goes on", repetitions=2)
def allocation_cancelled(bench: ChaosWorkbench) -> None:
    bench.order(seconds=6)
    job_id = _allocate(bench)
    assert job_id is not None
    wait_for(bench.executions)
    bench.harm(command, "scancel", job_id)
    _finish(bench)


@scenario("an allocation comes to its time limit; Slurm runs it again", repetitions=1)
def time_limit_of_an_allocation_met(bench: ChaosWorkbench) -> None:
    quick, *_, slow = bench.names
    bench.order({quick: {"seconds": 1}, slow: {"seconds": 100}}, seconds=1)
    bench.harm(_allocate, bench, NUM_NODES, ENDS_EARLY_SECONDS)
    wait_for(lambda: bench.sweep.folder.trial(slow).read_measurement() is not None, PATIENCE_SECONDS)
    assert bench.measurement_of(slow).why is Fault.PREEMPTED
    bench.order(seconds=1)
    _finish(bench)


@scenario("out of memory in a step of an allocation; the others go on", repetitions=1)
def out_of_memory_in_an_allocation(bench: ChaosWorkbench) -> None:
    victim = bench.names[0]
    bench.order({victim: {"end": "hoards memory"}}, seconds=4)
    bench.expected = {victim: (Outcome.OUT_OF_MEMORY,)}
    bench.slurm = bench.slurm.model_copy(update={"extra_sbatch": {"mem": "400M"}})
    bench.harm(_allocate, bench)
    _finish(bench)


@scenario("a step of an allocation hangs; it ends at its own time limit", repetitions=1)
def hang_in_an_allocation(bench: ChaosWorkbench) -> None:
    victim = bench.names[0]
    bench.order({victim: {"seconds": 600}}, seconds=2)
    bench.expected = {victim: (Outcome.TIMED_OUT,)}
    bench.slurm = bench.slurm.model_copy(update={"time_limit_minutes": 1})
    bench.harm(_allocate, bench)
    _finish(bench)


@scenario("kill -9 of the controller in an allocation of salloc; the next adopts its steps", repetitions=1)
def controller_killed_in_salloc(bench: ChaosWorkbench) -> None:
    bench.order(seconds=6)
    with _salloc(bench) as job_id:
        first = _controller(bench, job_id)
        wait_for(bench.executions)
        bench.harm(first.kill)
        first.join()
        second = _controller(bench, job_id)
        second.join(PATIENCE_SECONDS)
        assert second.exitcode == 0


def _allocate(
    bench: ChaosWorkbench, num_nodes: int = NUM_NODES, closing_seconds: float = AllocationTimes.closing_seconds
) -> str | None:
    """Give the command of the sweep; the id of its allocation, or None once nothing is left to run."""
    launcher = LauncherSpec(kind="allocation", num_nodes=num_nodes, time_limit_minutes=TIME_LIMIT_MINUTES)
    job_id, _ = submit_allocation(
        bench.command,
        bench.slurm,
        launcher,
        _cluster(),
        job=bench.job,
        times=AllocationTimes(closing_seconds, STEP_SECONDS),
    )
    return job_id


def _finish(bench: ChaosWorkbench) -> None:
    """Give the command again and again, until nothing is left to run."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with suppress(*REFUSALS):  # the allocation holds the sweep until it has ended
            if _allocate(bench) is None:
                return
        time.sleep(POLL_SECONDS)


def _cluster() -> ClusterSpec:
    return compose(Overrides.parse([*OVERRIDES, *NODES])).settings.cluster


@contextmanager
def _salloc(bench: ChaosWorkbench) -> Iterator[str]:
    """An allocation that a person took, with nothing in it."""
    name = f"chaos-{bench.sweep.folder.path.name}"
    options = (f"--nodes={NUM_NODES}", "--exclusive", "--no-kill", "--mem=0", f"--time={TIME_LIMIT_MINUTES}")
    command("salloc", "--no-shell", f"--job-name={name}", *options)
    job_id = command("squeue", "--noheader", f"--name={name}", "--format=%i").split()[0]
    try:
        yield job_id
    finally:
        command("scancel", job_id)


def _controller(bench: ChaosWorkbench, job_id: str) -> BaseProcess:
    """A process that carries the sweep out in the allocation, as the same command does in a shell of it."""
    process = multiprocessing.get_context("spawn").Process(target=_carry_out, args=(bench.sweep.folder.path, job_id))
    process.start()
    return process


def _carry_out(folder: Path, job_id: str) -> None:
    os.environ |= {"SLURM_JOB_ID": job_id, "SLURM_JOB_NUM_NODES": str(NUM_NODES)}
    bench = ChaosWorkbench.of(folder, Cluster(folder))
    run_inside(bench.command, bench.slurm, _cluster(), Silent(), job=bench.job)
