"""The report that each rank of the doctor's job writes, and the folder for them; findings of anything looked at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from conf.types.schema import Frozen
from train_core.trial.atomic import write_atomically
from train_core.trial.folder import JobFolder, PathInside

Status = Literal["ok", "warning", "problem", "skipped"]
Part = Literal["this machine", "Slurm", "nodes"]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check: what was found, and what to change.

    Attributes:
        status: `problem`: sweeps will fail; `warning`: they work, but not as well as they could, or not always;
            `skipped`: it could not be looked at.
    """

    part: Part
    name: str
    status: Status
    says: str
    remedy: str = ""


@dataclass(frozen=True)
class Findings:
    """Makes the findings of one part."""

    part: Part

    def ok(self, name: str, says: str) -> CheckResult:
        return CheckResult(self.part, name, "ok", says)

    def warning(self, name: str, says: str, remedy: str) -> CheckResult:
        return CheckResult(self.part, name, "warning", says, remedy)

    def problem(self, name: str, says: str, remedy: str) -> CheckResult:
        return CheckResult(self.part, name, "problem", says, remedy)

    def skip(self, name: str, says: str, remedy: str = "") -> CheckResult:
        return CheckResult(self.part, name, "skipped", says, remedy)


class NodeReport(Frozen):
    """One rank's word.

    Attributes:
        token: what it read in the token file; empty where it found none.
        clock: seconds since the epoch by the node's clock, when it wrote this.
        driver: as the vendor's tool says; empty where there is none.
        torch_version: empty where torch cannot be imported; `torch_error` then says why.
        link_bandwidth_bytes_per_second: of a transfer or collective between the two nodes; None before it is measured.
    """

    rank: int
    hostname: str
    python_version: str
    token: str
    clock: float
    driver: str = ""
    torch_version: str = ""
    torch_error: str = ""
    torch_seconds: float | None = None
    device: str = ""
    num_devices: int = 0
    device_memory_bytes: int = 0
    backend: str = ""
    link_bandwidth_bytes_per_second: float | None = None
    link_latency_seconds: float | None = None
    link_error: str = ""


class DoctorPlan(Frozen):
    """The task of the ranks of the job: what they should find, and what they do."""

    token: str
    kind: Literal["gpu", "cpu"]
    num_ranks: Annotated[int, Field(ge=1)]


class DoctorFolder(JobFolder):
    """The folder of one look at a site; besides what every job's folder has:

    doctor.lock     held (flock) by the one process that looks
    plan.json       the `DoctorPlan`
    node-N.json     the `NodeReport` of rank N, written anew as the rank gets on
    """

    lock = PathInside("doctor.lock")
    plan = PathInside("plan.json")

    def prepare(self, plan: DoctorPlan) -> None:
        """Forget an earlier look, and write what this one is for."""
        self.forget_failures()
        for path in (self.submission, *self.path.glob("node-*.json")):
            path.unlink(missing_ok=True)
        write_atomically(self.plan, plan.model_dump_json(indent=1))

    def report_of(self, rank: int) -> Path:
        return self.path / f"node-{rank}.json"

    def read_reports(self) -> list[NodeReport]:
        """Return the reports that ranks have written so far, in their order."""
        read = (self.read(NodeReport, path) for path in sorted(self.path.glob("node-*.json")))
        return [report for report in read if report is not None]

    def write_report(self, report: NodeReport) -> None:
        write_atomically(self.report_of(report.rank), report.model_dump_json(indent=1))
