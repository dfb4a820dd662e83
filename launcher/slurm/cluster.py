"""The Slurm cluster that this machine talks to: name, clock, limits, nodes, and what a site says of itself."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from conf.types.durations import minutes
from launcher.external_commands import ask, gpus_in, pairs_of_lines, pairs_of_words
from train_core.process.machine import this_user

_KEPT_SECONDS = 60.0
_known: dict[tuple[str, str], tuple[float, SlurmCluster]] = {}
"""What was said, and when, by where it was asked."""

COLUMNS = "%P|%a|%l|%D|%c|%G"
PART_OF_DEVICE = re.compile(r"\d+g\.\d+gb|\bmig", re.IGNORECASE)
"""In the name of a type: NVIDIA's words for a part of a GPU (MIG), such as `3g.20gb`."""

TOOLS = ("sbatch", "srun", "squeue", "scancel", "scontrol")
ENFORCEABLE = ("associations", "limits", "qos")
LIMITS = ("MaxWall", "MaxJobsPU", "MaxSubmitPU", "MaxJobsPA", "MaxSubmitPA", "MaxTRES")


class SlurmCluster(NamedTuple):
    """The facts that slurmctld states about itself.

    Attributes:
        name: as in slurm.conf; None where nothing answers.
        now: seconds since the epoch by slurmctld's clock, which is the one that job times are told in. The clock
            of a login node may be an hour off.
        max_array_size: elements that one array may have; None where nothing answers.
    """

    name: str | None
    now: float
    max_array_size: int | None
    enforces_limits: bool = False


def this_cluster() -> SlurmCluster:
    """Return the facts about slurmctld, without a name where there is none; within one command it is asked once."""
    where = (os.environ.get("SLURM_CONF", ""), shutil.which("scontrol") or "")
    stored = _known.get(where)
    age = time.monotonic() - stored[0] if stored else _KEPT_SECONDS
    if stored and age < _KEPT_SECONDS:
        # slurmctld's clock has gone on since, by as much as ours.
        return stored[1]._replace(now=stored[1].now + age)
    cluster = _ask_slurmctld()
    if cluster.name is not None:  # a slurmctld that is away is asked again
        _known[where] = time.monotonic(), cluster
    return cluster


def _ask_slurmctld() -> SlurmCluster:
    shown = ask("scontrol", "show", "config").stdout
    settings = pairs_of_lines(shown)
    # A MaxArraySize of 0 forbids arrays, so that every trial becomes a job of its own.
    size = settings.get("MaxArraySize", "")
    most = max(1, int(size)) if size.isdigit() else None
    enforced = re.search(r"\b(limits|safe|qos|all)\b", settings.get("AccountingStorageEnforce", ""))
    return SlurmCluster(settings.get("ClusterName") or None, _clock(shown), most, enforced is not None)


def _clock(shown: str) -> float:
    """slurmctld's time from the first line of its answer; this machine's where there is no such line.

    The line has no time zone: scontrol writes it in that of this machine, like all the times that Slurm shows.
    """
    written = re.search(r"^Configuration data as of (\S+)", shown, re.MULTILINE)
    try:
        return datetime.datetime.fromisoformat(written.group(1)).timestamp() if written else time.time()
    except ValueError:
        return time.time()


@dataclass(frozen=True)
class NodeKind:
    """Nodes of a partition that are alike, and one type of their devices.

    Attributes:
        is_default: jobs that name no partition go to this one.
        most_minutes: the longest that a job may last; None where the partition sets no limit.
        gpu_type: as Slurm calls it; None where it says nothing but their number.
    """

    partition: str
    is_default: bool
    is_up: bool
    most_minutes: float | None
    num_nodes: int
    num_cores: int
    num_gpus: int
    gpu_type: str | None


def node_kinds() -> list[NodeKind]:
    """Every kind of nodes of every partition; none where Slurm does not answer."""
    result = ask("sinfo", "--noheader", f"--format={COLUMNS}")
    return [kind for line in result.stdout.splitlines() if result.ok for kind in _kinds(line)]


def best_of(kinds: list[NodeKind], partitions: str | None = None) -> NodeKind | None:
    """The nodes to describe: with devices before those without, of the default partition before others, then most.

    Whole devices come before parts of them. Of equals it is the first by name: the order in which sinfo lists them
    depends on what runs on them.
    """
    by_name = sorted(kinds, key=lambda kind: (kind.partition, kind.gpu_type or ""))
    wanted = [kind for kind in by_name if partitions is None or kind.partition in partitions.split(",")]
    is_whole = {kind: PART_OF_DEVICE.search(kind.gpu_type or "") is None for kind in wanted}
    return max(
        wanted,
        key=lambda kind: (kind.is_up, kind.num_gpus > 0, is_whole[kind], kind.is_default, kind.num_nodes),
        default=None,
    )


def _kinds(line: str) -> Iterator[NodeKind]:
    fields = line.strip().split("|")
    # A site's wrapper may print a banner.
    if len(fields) != COLUMNS.count("|") + 1 or not fields[3].isdigit():
        return
    name, state, limit, nodes, cores, gres = fields
    # sinfo writes `64+` where the nodes of a line have different numbers of cores.
    number = re.match(r"\d+", cores)
    for gpu_type, num_gpus in gpus_in(gres) or [("", 0)]:
        yield NodeKind(
            # sinfo marks the default partition with a star.
            partition=name.rstrip("*"),
            is_default=name.endswith("*"),
            is_up=state == "up",
            most_minutes=minutes(limit),
            num_nodes=int(nodes),
            num_cores=int(number.group()) if number else 1,
            num_gpus=num_gpus,
            gpu_type=gpu_type or None,
        )


@dataclass(frozen=True)
class SlurmSite:
    """Answers of one site. An answer that did not come is empty.

    Attributes:
        associations: of the user: (account, partition, list of QOS), an empty partition standing for all.
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

    def offered(self, names: str | None) -> list[dict[str, str]]:
        """The partitions of these names, with commas between, of which Slurm takes the first that is free; else the
        default one. None where one of them is not there.
        """
        if names is None:
            return [each for each in self.partitions.values() if each.get("Default") == "YES"][:1]
        chosen = [self.partitions.get(name) for name in names.split(",")]
        return [each for each in chosen if each is not None] if None not in chosen else []


def read_site() -> SlurmSite | None:
    """Ask the site; None where its slurmctld does not answer."""
    config = ask("scontrol", "show", "config")
    if not config.ok:
        return None
    settings = pairs_of_lines(config.stdout)
    lines = [pairs_of_words(line) for line in ask("scontrol", "-o", "show", "partition").stdout.splitlines()]
    accounting = ask("sacct", "--noheader", "--allocations", "--starttime=now", "--format=JobID")
    which = (f"user={this_user()}", f"cluster={settings.get('ClusterName', '')}")
    own = sacctmgr_rows("assoc", ("account", "partition", "qos"), *which)
    return SlurmSite(
        version=settings.get("SLURM_VERSION", ""),
        config=settings,
        partitions={line["PartitionName"]: line for line in lines if "PartitionName" in line},
        associations=tuple((row[0], row[1], tuple(filter(None, row[2].split(",")))) for row in own),
        qos={name: dict(zip(LIMITS, limits, strict=True)) for name, *limits in sacctmgr_rows("qos", ("Name", *LIMITS))},
        accounting="" if accounting.ok else accounting.complaint,
    )


def sacctmgr_rows(what: str, columns: Sequence[str], *where: str) -> list[list[str]]:
    """The rows of the accounting's table of associations or QOS; none where it does not answer."""
    result = ask("sacctmgr", "--noheader", "--parsable2", "show", what, *where, f"format={','.join(columns)}")
    rows = [line.split("|") for line in result.stdout.splitlines()]
    # A site's wrapper may print a banner.
    return [row for row in rows if len(row) == len(columns)] if result.ok else []
