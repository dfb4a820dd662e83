"""The facts that a Slurm site states about itself: its configuration, a partition, and what the user may do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.tools import ask, pairs_of_lines, pairs_of_words
from train_core.process.machine import this_user

TOOLS = ("sbatch", "srun", "squeue", "scancel", "scontrol")
ENFORCEABLE = ("associations", "limits", "qos")
LIMITS = ("MaxWall", "MaxJobsPU", "MaxSubmitPU", "MaxJobsPA", "MaxSubmitPA", "MaxTRES")


@dataclass(frozen=True)
class SlurmSite:
    """Answers of one site. An answer that did not come is empty.

    Attributes:
        config: `scontrol show config`, by name.
        partitions: each as `scontrol show partition` says it.
        associations: of the user: (account, partition, list of QOS), an empty partition standing for all.
        qos: limits by the name of the QOS.
        accounting: why the accounting does not answer; empty where it does.
    """

    version: str
    config: dict[str, str]
    partitions: dict[str, dict[str, str]]
    associations: tuple[tuple[str, str, tuple[str, ...]], ...]
    qos: dict[str, dict[str, str]]
    accounting: str

    @property
    def name(self) -> str:
        return self.config.get("ClusterName", "")

    @property
    def keeps_accounts(self) -> bool:
        return "slurmdbd" in self.config.get("AccountingStorageType", "")

    @property
    def enforced_limits(self) -> frozenset[str]:
        """The limits that the site enforces: associations, limits, qos. Either of the last two implies the first."""
        words = set(self.config.get("AccountingStorageEnforce", "").lower().split(",")) & {*ENFORCEABLE}
        return frozenset(words | ({"associations"} if words else set()))

    def number(self, key: str) -> float | None:
        """The number at the beginning of a value, such as 300 of `300 sec`; None where there is none."""
        match = re.match(r"\d+", self.config.get(key, ""))
        return float(match.group()) if match else None

    def partition(self, name: str | None) -> dict[str, str] | None:
        """The partition of that name, or the default one; None where there is none."""
        if name is not None:
            return self.partitions.get(name)
        return next((each for each in self.partitions.values() if each.get("Default") == "YES"), None)


def read_site() -> SlurmSite | None:
    """Ask the site; None where its controller does not answer."""
    config = ask("scontrol", "show", "config")
    if not config.ok:
        return None
    settings = pairs_of_lines(config.stdout)
    lines = [pairs_of_words(line) for line in ask("scontrol", "-o", "show", "partition").stdout.splitlines()]
    accounting = ask("sacct", "--noheader", "--allocations", "--starttime=now", "--format=JobID")
    return SlurmSite(
        version=settings.get("SLURM_VERSION", ""),
        config=settings,
        partitions={line["PartitionName"]: line for line in lines if "PartitionName" in line},
        associations=_associations(settings.get("ClusterName", "")),
        qos=_qos(),
        accounting="" if accounting.ok else accounting.complaint,
    )


def _associations(cluster: str) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    command = ("sacctmgr", "-nP", "show", "assoc", f"user={this_user()}", f"cluster={cluster}")
    rows = [line.split("|") for line in ask(*command, "format=account,partition,qos").stdout.splitlines()]
    return tuple((row[0], row[1], tuple(filter(None, row[2].split(",")))) for row in rows if len(row) == 3)


def _qos() -> dict[str, dict[str, str]]:
    output = ask("sacctmgr", "-nP", "show", "qos", f"format=Name,{','.join(LIMITS)}").stdout
    rows = [line.split("|") for line in output.splitlines()]
    return {row[0]: dict(zip(LIMITS, row[1:], strict=True)) for row in rows if len(row) == len(LIMITS) + 1}
