"""What nodes tell, made up, against the cluster's file."""

from __future__ import annotations

import platform
import re
from typing import Any

import pytest

from launcher.doctor.examination import node_findings
from launcher.doctor.node_report import NodeReport
from launcher.doctor.tiny_job import JobEnd
from tests.composed import load_cluster

TOLD: dict[str, Any] = {
    "python_version": platform.python_version(),
    "token": "t",
    "clock": 0.0,
    "driver": "rocm-smi: 6.2",
    "torch_version": "2.6.0",
    "torch_seconds": 3.0,
    "device": "MI250X",
    "num_devices": 1,
    "device_memory_bytes": 64 * 2**30,
    "backend": "rccl",
    "link_bandwidth_bytes_per_second": 20e9,
    "link_latency_seconds": 2e-5,
}


def statuses(trouble: str = "", queued: float | None = 1.0, **changed: Any) -> dict[str, str]:
    """Of the findings about two nodes, the second of which tells something else."""
    reports = [NodeReport(rank=0, hostname="a", **TOLD), NodeReport(rank=1, hostname="b", **(TOLD | changed))]
    chosen = tuple(reports) if queued is not None else ()
    end = JobEnd("7", "t", chosen, trouble, "Wait." if trouble else "", queued)
    return {each.name: each.status for each in node_findings(end, load_cluster("frontier"))}


def test_nodes_as_the_file_says_are_ok() -> None:
    assert set(statuses().values()) == {"ok"}


@pytest.mark.parametrize(
    ("changed", "name", "status"),
    [
        ({"token": ""}, "shared folder", "problem"),
        ({"python_version": "3.9.1"}, "Python", "warning"),
        ({"torch_version": "", "torch_error": "No module named 'torch'"}, "torch", "problem"),
        ({"torch_version": "2.5.0"}, "torch", "problem"),
        ({"num_devices": 0}, "devices", "problem"),
        ({"link_error": "RuntimeError: no interface"}, "all-reduce", "problem"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_is_not_as_it_should_be_is_found(changed: dict[str, Any], name: str, status: str) -> None:
    assert statuses(**changed)[name] == status


@pytest.mark.parametrize(("num_devices", "remedy"), [(0, "mend that first"), (1, "NCCL_SOCKET_IFNAME")])
def test_an_all_reduce_that_fails_for_want_of_devices_is_no_matter_of_the_network(
    num_devices: int, remedy: str
) -> None:
    told = TOLD | {"link_error": "UsageError: this process sees 0 GPUs", "num_devices": num_devices}
    end = JobEnd("7", "t", (NodeReport(rank=0, hostname="a", **told),))
    found = {each.name: each for each in node_findings(end, load_cluster("frontier"))}
    assert remedy in found["all-reduce"].remedy


def test_a_slow_link_and_little_memory_are_warnings() -> None:
    slow = NodeReport(
        rank=0, hostname="a", **(TOLD | {"link_bandwidth_bytes_per_second": 1e9, "device_memory_bytes": 2**35})
    )
    found = {each.name: each for each in node_findings(JobEnd("7", "t", (slow,)), load_cluster("frontier"))}
    assert found["device memory"].status == "warning"
    assert found["all-reduce"].status == "warning"
    assert "measured 1 GB/s" in found["all-reduce"].says
    assert re.search(r"9\.\d\d? GB/s a device when all communicate \(slingshot\)", found["all-reduce"].says)  # of 12.5


def test_a_job_that_only_waits_in_the_queue_is_no_problem_of_the_site() -> None:
    assert statuses("it was still in the queue after 60 s (Priority)", queued=None) == {"job": "warning"}
    assert statuses("it ended early")["job"] == "problem"
