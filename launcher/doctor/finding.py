"""One thing that the doctor looked at, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem", "skipped"]
Part = Literal["this machine", "Slurm", "nodes"]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check: what was found, and what to change.

    Attributes:
        status: `problem`: sweeps will fail; `warning`: they work, but not as well as they could, or not always;
            `skipped`: it could not be looked at.
        says: what was found, in words for people.
        remedy: what to change; empty where nothing is wrong.
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
