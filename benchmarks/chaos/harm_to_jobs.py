"""Scenarios: ranks are killed, elements cancelled, requeued, suspended and preempted, limits met."""

from __future__ import annotations

import os
import signal

from benchmarks.chaos.cluster import command, wait_for
from benchmarks.chaos.scenario import scenario
from benchmarks.chaos.workbench import ChaosWorkbench
from train_core.trial.measurement import Fault, Outcome


@scenario("kill -9 of one rank of two", repetitions=2)
def rank_killed(bench: ChaosWorkbench) -> None:
    bench.begin(seconds=4)
    victim = bench.names[1]
    bench.until_running(victim)
    wait_for(lambda: len(bench.processes(victim)) == 2)
    bench.harm(os.kill, bench.processes(victim)[1], signal.SIGKILL)
    bench.finish()
    _require_end(bench, victim, Outcome.FAILED, Fault.KILLED, rank=1)
    bench.retry()


@scenario("kill -9 of all ranks of a job", repetitions=2)
def all_ranks_killed(bench: ChaosWorkbench) -> None:
    bench.begin(seconds=4)
    victim = bench.names[1]
    wait_for(lambda: len(bench.processes(victim)) == 2)
    for process in bench.processes(victim):
        bench.harm(os.kill, process, signal.SIGKILL)
    bench.finish()
    _require_end(bench, victim, Outcome.FAILED, Fault.KILLED)
    bench.retry()


@scenario("scancel of one element of an array; the next sweep runs it again", repetitions=2)
def element_cancelled(bench: ChaosWorkbench) -> None:
    bench.begin(seconds=5)
    victim = bench.names[0]
    bench.until_running(victim)
    bench.harm(command, "scancel", bench.job_of(victim))
    bench.settle()
    _require_end(bench, victim, Outcome.CANCELLED, Fault.CANCELLED)
    bench.finish()


@scenario("scontrol requeue of every running element", repetitions=2)
def elements_requeued(bench: ChaosWorkbench) -> None:
    bench.train(seconds=5)
    for name in bench.names:
        bench.harm(command, "scontrol", "requeue", bench.job_of(name))
    bench.finish()


@scenario("scontrol requeue of elements that had completed", repetitions=2)
def completed_elements_requeued(bench: ChaosWorkbench) -> None:
    bench.begin(seconds=1)
    bench.until_complete(*bench.names)
    ids = [bench.job_of(name) for name in bench.names]
    wait_for(lambda: not command("squeue", "--noheader", f"--jobs={','.join(ids)}"))
    for job in ids:
        bench.harm(command, "scontrol", "requeue", job)
    wait_for(lambda: not command("squeue", "--noheader", f"--jobs={','.join(ids)}"))
    bench.finish()


@scenario("scontrol suspend and resume of running elements", repetitions=2)
def elements_suspended(bench: ChaosWorkbench) -> None:
    bench.train(seconds=4)
    for name in bench.names[:2]:
        bench.harm(command, "scontrol", "suspend", bench.job_of(name))
    bench.advance()
    for name in bench.names[:2]:
        bench.harm(command, "scontrol", "resume", bench.job_of(name))
    bench.finish()


@scenario("the time limit (one minute)", repetitions=1)
def time_limit_met(bench: ChaosWorkbench) -> None:
    slow = bench.names[1]
    bench.order({slow: {"seconds": 300}}, seconds=1)
    bench.expected[slow] = (Outcome.TIMED_OUT,)
    bench.num_faults += 1
    bench.start(time_limit_minutes=1)
    bench.finish()


@scenario("Slurm's memory limit", repetitions=2)
def memory_limit_met(bench: ChaosWorkbench) -> None:
    hungry = bench.names[1]
    bench.order({hungry: {"end": "hoards memory"}})
    bench.expected[hungry] = (Outcome.OUT_OF_MEMORY,)
    bench.num_faults += 1
    bench.start(extra_sbatch={"mem": "400M"})
    bench.finish()
    lacked = bench.measurement_of(hungry).over_capacity_bytes
    assert lacked is not None
    assert lacked > 0


@scenario("torch's exception: out of memory, with GiB", repetitions=1)
def memory_of_a_device_met(bench: ChaosWorkbench) -> None:
    hungry = bench.names[1]
    said = "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 64.00 GiB of which 1.00 GiB"
    bench.order({hungry: {"end": f"{said} is free.", "rank": 1}})
    bench.expected[hungry] = (Outcome.OUT_OF_MEMORY,)
    bench.num_faults += 1
    bench.start()
    bench.finish()
    assert bench.measurement_of(hungry).over_capacity_bytes == 2 * 2**30


@scenario("preemption of everything by an urgent job, with requeue", repetitions=1, alone=True)
def preempted_and_requeued(bench: ChaosWorkbench) -> None:
    bench.train(seconds=4)
    bench.harm(_urgent_job)
    bench.finish()


@scenario("preemption of everything where Slurm cancels instead of requeueing", repetitions=1, alone=True)
def preempted_and_cancelled(bench: ChaosWorkbench) -> None:
    command("scontrol", "update", "PartitionName=test", "PreemptMode=CANCEL")
    try:
        bench.train(seconds=4)
        bench.harm(_urgent_job)
        bench.settle()
        faults = {bench.measurement_of(name).why for name in bench.names}
        assert faults == {Fault.PREEMPTED}, faults
        bench.finish()
    finally:
        command("scontrol", "update", "PartitionName=test", "PreemptMode=REQUEUE")


@scenario("a node on which every job meets an NCCL error", num_trials=12, repetitions=1, alone=True)
def bad_node(bench: ChaosWorkbench) -> None:
    bench.order(seconds=1, end="NCCL error: unhandled system error", on_node="node1")
    bench.num_faults += 1
    bench.start(array_parallelism=4)
    bench.finish()


@scenario("over two kinds of nodes: kill -9 of the rank on the second kind", is_mixed=True)
def mixed_rank_killed(bench: ChaosWorkbench) -> None:
    bench.begin(seconds=4)
    victim = bench.names[0]
    wait_for(lambda: len(bench.processes(victim)) == 2)
    bench.harm(os.kill, bench.processes(victim)[1], signal.SIGKILL)
    bench.settle()
    _require_end(bench, victim, Outcome.FAILED, Fault.KILLED, rank=1)
    bench.retry()


@scenario("over two kinds of nodes: scancel of one job, requeue of another", is_mixed=True, repetitions=1)
def mixed_cancelled_and_requeued(bench: ChaosWorkbench) -> None:
    bench.begin(seconds=4)
    cancelled, requeued, *_ = bench.names
    bench.until_running()
    bench.harm(command, "scancel", bench.job_of(cancelled))
    bench.harm(command, "scontrol", "requeue", bench.job_of(requeued))
    bench.settle()
    _require_end(bench, cancelled, Outcome.CANCELLED, Fault.CANCELLED)
    bench.finish()


@scenario("over two kinds of nodes: a node of the second kind goes down", is_mixed=True, repetitions=1, alone=True)
def mixed_node_down(bench: ChaosWorkbench) -> None:
    bench.train(seconds=8)
    with bench.without(bench.executions()[0].node):
        bench.advance()
    bench.order(seconds=1)
    bench.finish()


def _urgent_job() -> None:
    """Takes all nodes for two seconds."""
    everything = ("--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 2")
    command("sbatch", "--wait", *everything)


def _require_end(bench: ChaosWorkbench, name: str, outcome: Outcome, fault: Fault, rank: int | None = None) -> None:
    told = bench.measurement_of(name)
    assert (told.outcome, told.why) == (outcome, fault), f"{name}: {told.outcome}, {told.why}, {told.cause}"
    if rank is not None:
        assert told.failing_rank == rank, f"{name}: rank {told.failing_rank} is blamed"
