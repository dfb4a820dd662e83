"""The allocation that this process runs in: its nodes, what each has, and how long it lasts. Slurm is asked."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from conf.errors import UsageError
from launcher.slurm.own_jobs import own_job_id
from launcher.slurm.query import SlurmSilent
from launcher.tools import ask, gpus_in, node_names, numbers, seconds

NODES = re.compile(r"^\s*Nodes=(?P<nodes>\S+) CPU_IDs=(?P<cores>\S+) Mem=(?P<memory>\d+)(?: GRES=(?P<gres>\S*))?", re.M)
STATE = re.compile(r"^NodeName=(?P<node>\S+) .*?\bState=(?P<state>\S+)", re.M)
DRAINING, LOST = re.compile(r"DRAIN"), re.compile(r"DOWN|FAIL|ERROR")
"""In a node's state: nothing more is to start there; and what ran there does so no more, or not for long."""

INTERACTIVE_STEP = "4294967290"
"""The step in which salloc starts its shell where the site has `LaunchParameters=use_interactive_step`."""


class AllocatedNode(NamedTuple):
    """The part of one node that belongs to the allocation.

    Attributes:
        cores: as Slurm counts CPUs.
        memory_mb: 0 where Slurm does not manage memory.
        gpus: 0 where Slurm hands out none, though the node may have some.
    """

    name: str
    cores: int
    memory_mb: int
    gpus: int


@dataclass(frozen=True)
class SlurmAllocation:
    """One Slurm job as seen from inside.

    Attributes:
        job_id: as squeue calls it: `12`, or `12_3` for an element of an array.
        job_name: which no other job has, if we submitted it.
        restarts: how often Slurm has started it again.
        nodes: those that Slurm still counts among it, without any that is down, failing or being drained.
        num_nodes: that it had at its start.
        is_running: Slurm does not say that it ends, is suspended, or is started again.
        ends: when its time is over, by `time.monotonic`; infinite without a limit.
        seconds: how long it lasts in all.
        draining: nodes of its own that are given nothing more, though what runs there runs on.
    """

    job_id: str
    job_name: str
    restarts: int
    nodes: tuple[AllocatedNode, ...]
    num_nodes: int
    is_running: bool
    ends: float
    seconds: float
    draining: frozenset[str] = frozenset()

    @property
    def remaining_seconds(self) -> float:
        return self.ends - time.monotonic()


def is_inside(environment: Mapping[str, str]) -> bool:
    """True if this process runs in an allocation, and not in a step of it that srun started."""
    return "SLURM_JOB_ID" in environment and environment.get("SLURM_STEP_ID") in (None, INTERACTIVE_STEP)


def own_allocation(environment: Mapping[str, str] = os.environ) -> SlurmAllocation:
    """The allocation in which this process runs, with those of its nodes that it still has and that are up.

    Raises:
        SlurmSilent: Slurm does not answer.
        UsageError: this process runs in none.
    """
    if not is_inside(environment):
        raise UsageError("This process does not run in a Slurm allocation", "Start it with sbatch or salloc.")
    allocation = _parse_job(
        _answer("scontrol", "show", "job", "--detail", environment["SLURM_JOB_ID"]), own_job_id(environment)
    )
    draining, lost = _unfit_nodes(allocation.nodes)
    return replace(
        allocation,
        nodes=tuple(node for node in allocation.nodes if node.name not in draining | lost),
        draining=draining,
        # As at its start, because Slurm no longer lists a node that has failed.
        num_nodes=int(environment.get("SLURM_JOB_NUM_NODES", len(allocation.nodes))),
    )


def running_steps(job_id: str) -> dict[str, tuple[str, ...]]:
    """The nodes of each step of the job that runs, by the step's name.

    Raises:
        SlurmSilent: Slurm does not answer.
    """
    lines = _answer("squeue", "--steps", "--noheader", f"--jobs={job_id}", "--format=%j|%N").splitlines()
    # Apart at the last mark: a step's name may hold one, and those of nodes do not.
    return {name: node_names(nodes) for name, _, nodes in (line.strip().rpartition("|") for line in lines)}


def _unfit_nodes(nodes: Sequence[AllocatedNode]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the nodes that drain, which Slurm counts among a job's to the job's end, and those that are lost."""
    if not nodes:
        return frozenset(), frozenset()
    shown = _answer("scontrol", "show", "node", "--oneliner", ",".join(node.name for node in nodes))
    states = {match["node"]: match["state"] for match in STATE.finditer(shown)}
    lost = frozenset(node for node, state in states.items() if LOST.search(state))
    return frozenset(node for node, state in states.items() if DRAINING.search(state)) - lost, lost


def _parse_job(shown: str, job_id: str) -> SlurmAllocation:
    nodes = tuple(node for match in NODES.finditer(shown) for node in _nodes(match))
    # From two durations, so that it does not matter whose clock is off.
    remaining_seconds = _seconds(_field(shown, "TimeLimit")) - _seconds(_field(shown, "RunTime"))
    return SlurmAllocation(
        job_id=job_id,
        job_name=_field(shown, "JobName"),
        restarts=int(_field(shown, "Restarts")),
        nodes=nodes,
        num_nodes=len(nodes),
        is_running=_field(shown, "JobState") == "RUNNING",
        ends=time.monotonic() + remaining_seconds,
        seconds=_seconds(_field(shown, "TimeLimit")),
    )


def _nodes(match: re.Match[str]) -> list[AllocatedNode]:
    """Equal nodes share a line of Slurm's answer."""
    cores, gpus = len(numbers(match["cores"])), sum(count for _, count in gpus_in(match["gres"] or ""))
    return [AllocatedNode(name, cores, int(match["memory"]), gpus) for name in node_names(match["nodes"])]


def _field(shown: str, name: str) -> str:
    # An answer that lacks the field was cut off, and is none.
    match = re.search(rf"(?:^|\s){name}=(\S+)", shown)
    if match is None:
        raise SlurmSilent
    return match[1]


def _seconds(text: str) -> float:
    limit = seconds(text)
    return float("inf") if limit is None else float(limit)


def _answer(*command: str) -> str:
    if not shutil.which(command[0]):
        raise UsageError(f"There is no {command[0]} on the PATH of this node", "The controller needs Slurm's commands.")
    result = ask(*command)
    if not result.ok:
        raise SlurmSilent
    return result.stdout
