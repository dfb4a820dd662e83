"""What Slurm says of an allocation, read from its own words (Slurm 22.05)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from conf.errors import UsageError
from launcher.allocation.nodes import AllocatedNode, is_inside, own_allocation
from launcher.slurm.query import SlurmSilent
from tests.messages import refused

SHOWN = """JobId=7 JobName=trisweep-test-allocation-1a2b3c4d
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState={state} Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:10:00 TimeLimit={limit} TimeMin=N/A
   NodeList=node[1-3]
   JOB_GRES=gpu:20
     Nodes=node[1-2] CPU_IDs=0-7 Mem=32000 GRES=gpu:8(IDX:0-7)
     Nodes=node3 CPU_IDs=0-3,8 Mem=16000 GRES=gpu:a100:4(IDX:0-3)
"""
INSIDE = {"SLURM_JOB_ID": "7"}


def test_nodes_time_and_name_are_read(tools: Callable[..., None]) -> None:
    tools(scontrol=f"cat <<END\n{SHOWN.format(state='RUNNING', limit='1-00:00:00')}END")
    found = own_allocation(INSIDE)
    assert (found.job_id, found.job_name, found.restarts) == ("7", "trisweep-test-allocation-1a2b3c4d", 2)
    assert found.nodes == (
        AllocatedNode("node1", 8, 32000, 8),
        AllocatedNode("node2", 8, 32000, 8),
        AllocatedNode("node3", 5, 16000, 4),
    )
    assert (found.is_running, found.num_nodes) == (True, 3)
    assert found.seconds == 86400
    assert found.remaining_seconds == pytest.approx(86400 - 600, abs=5)


def test_what_is_left_is_counted_from_the_answer_that_tells_it(tools: Callable[..., None]) -> None:
    """The nodes are asked about afterwards, which may take a busy controller long."""
    job = SHOWN.format(state="RUNNING", limit="01:00:00")
    tools(scontrol=f'if [ "$2" = node ]; then sleep 3\nelse cat <<END\n{job}END\nfi')
    before = time.monotonic()
    assert own_allocation(INSIDE).ends == pytest.approx(before + 3000, abs=2)


def test_an_allocation_without_a_limit_never_ends(tools: Callable[..., None]) -> None:
    tools(scontrol=f"cat <<END\n{SHOWN.format(state='COMPLETING', limit='UNLIMITED')}END")
    found = own_allocation(INSIDE)
    assert found.remaining_seconds == float("inf")
    assert not found.is_running


def test_a_site_without_managed_gpus_shows_none(tools: Callable[..., None]) -> None:
    shown = "JobId=7 JobName=sh JobState=RUNNING Restarts=0 RunTime=00:00:01 TimeLimit=00:30:00\n"
    tools(scontrol=f"cat <<END\n{shown}     Nodes=n1 CPU_IDs=0-63 Mem=0 GRES=\nEND")
    assert own_allocation(INSIDE).nodes == (AllocatedNode("n1", 64, 0, 0),)


def test_an_element_of_an_array_is_called_as_squeue_calls_it(tools: Callable[..., None]) -> None:
    tools(scontrol=f"cat <<END\n{SHOWN.format(state='RUNNING', limit='01:00:00')}END")
    element = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    assert own_allocation(element).job_id == "7_2"


def test_a_silent_controller_is_no_answer(tools: Callable[..., None]) -> None:
    tools(scontrol="exit 1")
    with pytest.raises(SlurmSilent):
        own_allocation(INSIDE)


def test_outside_of_any_allocation_it_says_so() -> None:
    with refused(UsageError):
        own_allocation({})
    with pytest.raises(UsageError):
        own_allocation({**os.environ, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"})


@pytest.mark.parametrize(
    ("step", "inside"), [({}, True), ({"SLURM_STEP_ID": "4294967290"}, True), ({"SLURM_STEP_ID": "0"}, False)]
)
def test_the_shell_of_salloc_is_inside_its_allocation_also_where_it_is_a_step(
    step: dict[str, str], inside: bool
) -> None:
    assert is_inside(INSIDE | step) is inside


def test_a_node_that_is_down_or_being_drained_is_not_counted(tools: Callable[..., None]) -> None:
    states = ("node1 Arch=x State=ALLOCATED", "node2 Arch=x State=MIXED+DRAIN", "node3 Arch=x State=DOWN*")
    nodes = "\n".join(f"NodeName={state} ThreadsPerCore=1" for state in states)
    job = SHOWN.format(state="RUNNING", limit="01:00:00")
    tools(scontrol=f'if [ "$2" = node ]; then cat <<END\n{nodes}\nEND\nelse cat <<END\n{job}END\nfi')
    found = own_allocation(INSIDE)
    assert ([node.name for node in found.nodes], found.num_nodes) == (["node1"], 3)
    assert found.draining == frozenset({"node2"})
