"""A rank of the doctor's job: it tells first what needs no torch, so that a node without torch can say so."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time

from launcher.doctor.node_report import DoctorFolder, DoctorPlan, NodeReport
from launcher.external_commands import ask
from train_core.process.long_lived import importing_torch

TOKEN_SECONDS = 30.0
"""For so long a network file system may hide from a node what another machine has just written."""

DRIVER_TOOLS = (
    ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    ("rocm-smi", "--showdriverversion"),
)


def report_as_rank(folder: DoctorFolder) -> None:
    """Tell of this node, then import torch, meet the other rank and measure the link between the two."""
    rank = int(os.environ["SLURM_PROCID"])
    plan = _plan(folder)
    report = NodeReport(
        rank=rank,
        hostname=socket.gethostname(),
        python_version=platform.python_version(),
        token=plan.token if plan else "",
        clock=time.time(),
        driver=_driver(),
    )
    folder.write_report(report)
    if plan is None:
        return
    began = time.monotonic()
    try:
        with importing_torch():
            import torch  # the first import of a session may take minutes
    except ImportError as error:
        folder.write_report(report.model_copy(update={"torch_error": str(error)}))
        return
    seconds = time.monotonic() - began
    report = report.model_copy(update={"torch_version": torch.__version__, "torch_seconds": seconds})
    folder.write_report(report)
    _measure(folder, plan, report)


def _measure(folder: DoctorFolder, plan: DoctorPlan, report: NodeReport) -> None:
    from rates.links import device_facts, link_between_nodes

    try:
        report = report.model_copy(update=device_facts(plan.kind))
        folder.write_report(report)
        if plan.num_ranks > 1:
            latency, bandwidth = link_between_nodes(plan.kind)
            link = {"link_latency_seconds": latency, "link_bandwidth_bytes_per_second": bandwidth}
            folder.write_report(report.model_copy(update=link))
    except Exception as error:  # whatever it is, it is what the doctor was asked for
        folder.write_report(report.model_copy(update={"link_error": f"{type(error).__name__}: {error}"}))


def _plan(folder: DoctorFolder) -> DoctorPlan | None:
    deadline = time.monotonic() + TOKEN_SECONDS
    while True:
        plan = folder.read(DoctorPlan, folder.plan)
        if plan is not None or time.monotonic() > deadline:
            return plan
        time.sleep(0.5)


def _driver() -> str:
    """The version of the devices' driver, in one line."""
    for command in DRIVER_TOOLS:
        if shutil.which(command[0]):
            result = ask(*command)
            if result.exit_code is None:
                return f"{command[0]} hangs"
            said = result.stdout.split()
            return f"{command[0]}: {said[-1]}" if said else f"{command[0]} says nothing"
    return ""
