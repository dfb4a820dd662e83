"""The allocation that this process runs in: its nodes, what each has, and how long it lasts; how its steps ended.

Slurm is asked; where it does not answer, `SlurmSilent` is raised.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from conf.errors import UsageError
from conf.types.durations import seconds
from launcher.external_commands import ask, gpus_in, node_names, numbers
from launcher.slurm.job_status import own_job_id
from launcher.slurm.query import SCRIPT, SlurmJobState, SlurmSilent
from launcher.slurm.verdict import SLURM_SAYS, TASK_END, outcome_in_words, own_lines, verdict
from sweeps.folder.submission import Submission
from sweeps.reading import Reading
from train_core.job.failures import fault_of_signal
from train_core.trial.logs import tail
from train_core.trial.measurement import Measurement, Outcome

NODES = re.compile(r"^\s*Nodes=(?P<nodes>\S+) CPU_IDs=(?P<cores>\S+) Mem=(?P<memory>\d+)(?: GRES=(?P<gres>\S*))?", re.M)
STATE = re.compile(r"^NodeName=(?P<node>\S+) .*?\bState=(?P<state>\S+)", re.M)
DRAINING, LOST = re.compile(r"DRAIN"), re.compile(r"DOWN|FAIL|ERROR")
"""In a node's state: nothing more is to start there; and what ran there does so no more, or not for long."""

INTERACTIVE_STEP = "4294967290"
"""The step in which salloc starts its shell where the site has `LaunchParameters=use_interactive_step`."""

NODE_FAILURE = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)
NOT_CREATED = re.compile(r"^srun: error: (Unable to (?:create step|confirm allocation) .*)", re.MULTILINE)
NOT_STARTED = re.compile(r"^srun: error: (Unable to create step.*|.*Invalid .*specification.*)", re.MULTILINE)
# Slurm names its own reasons after DUE TO; a line without one tells of a person, or of srun itself.
STEP_CANCELLED = re.compile(rf"{SLURM_SAYS}\*\*\* STEP \S+ ON \S+ CANCELLED AT (?!.* DUE TO )", re.MULTILINE)

STATE_IN_WORDS = {Outcome.TIMED_OUT: "TIMEOUT", Outcome.PREEMPTED: "PREEMPTED", Outcome.NODE_FAILED: "NODE_FAIL"}
"""How Slurm calls the end of a step whose own lines say this."""


class AllocatedNode(NamedTuple):
    """The part of one node that belongs to the allocation, 0 of what Slurm does not manage; cores are its CPUs."""

    name: str
    cores: int
    memory_mb: int
    gpus: int


@dataclass(frozen=True)
class SlurmAllocation:
    """One Slurm job as seen from inside.

    Attributes:
        nodes: those that Slurm still counts among it, without any that is down, failing or being drained.
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
    shown = _answer("scontrol", "show", "job", "--detail", environment["SLURM_JOB_ID"])
    nodes = [node for match in NODES.finditer(shown) for node in _nodes(match)]
    limit = _seconds(_field(shown, "TimeLimit"))
    # From two durations, so that it does not matter whose clock is off. Now, as the next answer may take its time.
    ends = time.monotonic() + limit - _seconds(_field(shown, "RunTime"))
    draining, lost = _unfit_nodes(nodes)
    own_name = environment.get("SLURM_JOB_NAME", "")
    return SlurmAllocation(
        job_id=own_job_id(environment),
        # One of ours knows the name that it was submitted under, which its script has too.
        job_name=own_name if own_name in SCRIPT.findall(shown) else _field(shown, "JobName"),
        restarts=int(_field(shown, "Restarts")),
        nodes=tuple(node for node in nodes if node.name not in draining | lost),
        # As at its start, because Slurm no longer lists a node that has failed.
        num_nodes=int(environment.get("SLURM_JOB_NUM_NODES", len(nodes))),
        is_running=_field(shown, "JobState") == "RUNNING",
        ends=ends,
        seconds=limit,
        draining=draining,
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


def step_end(
    reading: Reading, submission: Submission, exit_code: int, nodes: Sequence[str], lost: Sequence[str] = ()
) -> Measurement:
    """Return the measurement for a step that ended while its allocation lives, perhaps without some of its nodes."""
    log = own_lines(tail(submission.error_of(0)))
    measurement = verdict(reading, submission, _state(log, exit_code, nodes, lost))
    # The controller itself ends a srun with SIGTERM, and does not ask then why it ended.
    if exit_code < 0 and measurement.outcome is Outcome.FAILED and measurement.failing_rank is None:
        cause = f"its srun was killed by {signal.Signals(-exit_code).name}"
        return measurement.model_copy(update={"cause": cause, "fault": fault_of_signal(-exit_code)})
    if (words := NOT_STARTED.search(log)) and measurement.outcome is Outcome.FAILED:
        return measurement.model_copy(update={"cause": f"srun could not start it: {words[1]}"})
    return measurement


def why_not_created(submission: Submission) -> str:
    """Return srun's reason if Slurm did not make the step at all, so that nothing of it ran; else an empty text."""
    match = NOT_CREATED.search(own_lines(tail(submission.error_of(0))))
    return match[1] if match else ""


def _state(log: str, exit_code: int, nodes: Sequence[str], lost: Sequence[str]) -> SlurmJobState:
    """Return the step's end as a Slurm state, from srun's words: they exist without accounting, and at once."""
    # A lost node comes first, because whatever else srun says follows from it.
    if failed := lost or NODE_FAILURE.findall(log):
        return SlurmJobState("NODE_FAIL", nodes=",".join(failed))
    said = outcome_in_words(log)
    failed_as = STATE_IN_WORDS.get(said, "FAILED") if said is not None else "FAILED"
    name = "COMPLETED" if exit_code == 0 else failed_as
    # Slurm cancels a step whose srun has gone, too, and nobody wanted that.
    is_cancelled = exit_code >= 0 and _was_cancelled(log)
    return SlurmJobState("CANCELLED" if is_cancelled else name, nodes=",".join(nodes))


def _was_cancelled(log: str) -> bool:
    """True if somebody cancelled the step. srun itself does so too, once it has said that a task failed."""
    cancelled, task = STEP_CANCELLED.search(log), TASK_END.search(log)
    if cancelled is None or outcome_in_words(log) is not None:
        return False
    return task is None or cancelled.start() < task.start()
