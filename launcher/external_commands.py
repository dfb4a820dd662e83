"""Other people's tools, such as those of Slurm and of the drivers, run for their answer, and the forms of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

ANSWER_SECONDS = 20
"""As long as a busy controller may take, or a driver that wakes its devices. A broken one hangs."""

MANY_JOBS_SECONDS = 60
"""As long as Slurm or PBS may take to look at, or end, some hundred jobs."""

IDS_PER_CALL = 500
"""A sweep may have thousands of jobs. So many ids or names at a time stay far below the longest command line."""

TOOLS_OF_SLURM = frozenset({"squeue", "sacct", "sinfo", "scontrol", "scancel"})
FILTERS = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_")
"""So begin variables by which people shape what Slurm's tools show them: jobs of ours would be missing from it."""

REQUEST_OF_JOB = (
    *("SLURM_CPUS_PER_", "SLURM_GPUS", "SLURM_GRES", "SLURM_MEM_PER_", "SLURM_NPROCS", "SLURM_NTASKS"),
    "SLURM_TRES_PER_",
)
"""So begin the variables in which a job's own request stands. srun would take them for options of its step."""

OF_A_JOB = (
    *REQUEST_OF_JOB,
    *("SLURM_ARRAY_", "SLURM_CPU_BIND", "SLURM_CPU_FREQ_REQ", "SLURM_CPUS_ON_NODE", "SLURM_DIST", "SLURM_EXPORT_ENV"),
    *("SLURM_GET_USER_ENV", "SLURM_GPU_", "SLURM_GTIDS", "SLURM_HET_", "SLURM_HINT", "SLURM_JOB", "SLURM_LAUNCH_NODE"),
    *("SLURM_LOCALID", "SLURM_MEM_BIND", "SLURM_NNODES", "SLURM_NODE", "SLURM_OVERCOMMIT", "SLURM_PRIO_PROCESS"),
    *("SLURM_PROCID", "SLURM_PROFILE", "SLURM_PTY_", "SLURM_RESTART_COUNT", "SLURM_SHARDS", "SLURM_SRUN_COMM_"),
    *("SLURM_STEP", "SLURM_SUBMIT_", "SLURM_TASK", "SLURM_THREADS_PER_CORE", "SLURM_TOPOLOGY_ADDR", "SLURM_TRES_"),
    *("SLURM_UMASK", "SLURMD_"),
)
"""So begin all variables in which Slurm speaks to a job of itself. Another job would take its options from them, and
how often it was started. Those of SBATCH_ are people's own, and so are settings such as SLURM_MPI_TYPE."""

FORMS = {"SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}
"""Times in full, and lists of an array's elements of any length."""

GPUS = re.compile(r"\bgpu:(?:(?!no_consume)([^:,(|]+):)?(?:[^:,(|]+:)*(\d+)")
PART = re.compile(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*")
RANGES = re.compile(r"\[([^\]]*)\]")
SPAN = re.compile(r"(\d+)(?:-(\d+))?(?::(\d+))?")


class ToolResult(NamedTuple):
    """The output of a tool.

    Attributes:
        exit_code: None where it is absent, cannot be run or did not answer in time; `stderr` says which.
    """

    exit_code: int | None
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def complaint(self) -> str:
        return " ".join((self.stderr or self.stdout).split())


def ask(
    *command: str,
    stdin: str | None = None,
    seconds: float | None = ANSWER_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> ToolResult:
    """Run a tool; one that is absent or hangs has not answered well.

    Args:
        environment: None takes this process's own, without what would change the answer.
        seconds: after which it is ended; None for what would be half done then, such as a submission.
    """
    if not shutil.which(command[0]):
        return ToolResult(None, "", f"there is no {command[0]} on the PATH")
    try:
        given = None if stdin is None else stdin.encode()
        seen = _environment_of(command[0]) if environment is None else environment
        done = subprocess.run(command, input=given, capture_output=True, timeout=seconds, check=False, env=seen)
    except subprocess.TimeoutExpired:
        return ToolResult(None, "", f"{command[0]} did not answer within {seconds} s")
    except OSError as error:
        return ToolResult(None, "", str(error))
    # Not as text: a patch has to keep the line ends of its files.
    return ToolResult(done.returncode, *(said.decode(errors="replace") for said in (done.stdout, done.stderr)))


def in_calls(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield as many ids, or names, at a time as one call takes."""
    yield from (ids[first : first + IDS_PER_CALL] for first in range(0, len(ids), IDS_PER_CALL))


def without_job(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what Slurm said there of the job in which this process runs, if it runs in one."""
    # On a login node a person's own module may set some of them, for their jobs.
    in_a_job = "SLURM_JOB_ID" in environment
    return {name: value for name, value in environment.items() if not (in_a_job and name.startswith(OF_A_JOB))}


def _environment_of(tool: str) -> dict[str, str]:
    if tool in TOOLS_OF_SLURM:
        return {name: value for name, value in os.environ.items() if not name.startswith(FILTERS)} | FORMS
    return dict(os.environ)


def gpus_in(gres: str) -> list[tuple[str, int]]:
    """Type (empty where Slurm names none) and number: `gpu:a100:4(S:0-1),nvme:1` -> a100, 4."""
    return [(kind, int(count)) for kind, count in GPUS.findall(gres)]


def numbers(ranges: str) -> list[str]:
    """`08-10,12` -> 08, 09, 10, 12: zeros in front belong to the name of a node. `0-4:2` -> 0, 2, 4."""
    spans = [SPAN.fullmatch(part) for part in ranges.split(",")]
    return [
        f"{number:0{len(first)}d}"
        for first, last, step in (span.groups() for span in spans if span)
        for number in range(int(first), int(last or first) + 1, int(step or 1))
    ]


def node_names(short: str) -> tuple[str, ...]:
    """`node[08-10,12],login1` -> node08, node09, node10, node12, login1."""
    return tuple(name for part in PART.findall(short) for name in _names(part))


def _names(part: str) -> Iterator[str]:
    ranges = RANGES.search(part)
    if ranges is None:
        yield part
        return
    for number in numbers(ranges.group(1)):
        # A name may hold several ranges, as that of a rack and a node does.
        yield from _names(f"{part[: ranges.start()]}{number}{part[ranges.end() :]}")


def pairs_of_lines(text: str) -> dict[str, str]:
    """Parse the output of `scontrol show config`: a `Name = value` on each line."""
    return {name: value.strip() for name, value in re.findall(r"^(\S+)\s*= ?(.*)$", text, re.MULTILINE)}


def pairs_of_words(line: str) -> dict[str, str]:
    """Parse the output of `scontrol -o show partition`: `Name=value` words."""
    return dict(re.findall(r"(?<!\S)([^\s=]+)=(\S*)", line))
