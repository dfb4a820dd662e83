"""This machine: its cores, memory and accelerators, and its jobs.

Jobs are started through submitit, and one that outlived its sweep is found again. What the machine has is found without
torch, which takes seconds to import.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import psutil

from conf.plan.experiment import Experiment
from conf.units import GIBIBYTE, count_of
from costs import Estimate
from launcher.external_commands import ask
from launcher.job_payload import FolderWork
from launcher.submitit_internals import CONTROLLER, start_controller
from sweeps.folder.submission import JobShape, Submission, new_submission, write_submission
from sweeps.trial import Trial
from train_core.process.git_sha import variables_of
from train_core.trial.folder import JobFolder

LocalJobFunction = Callable[[str, tuple[int, ...], float | None], object]
EXTRA_MINUTES = 10
"""The supervisor keeps the time limit. submitit's own comes so much later, for a supervisor that hangs."""

UNLIMITED_MINUTES = 60 * 24 * 365
"""submitit requires a time limit, so a year stands for none."""


def supervisor_of(submission: Submission) -> psutil.Process | None:
    """The process that submitit started for this job, if it still runs; a reused process id is not taken for it."""
    if submission.executor != "local" or submission.hostname != socket.gethostname() or submission.copied_from:
        return None
    try:
        process = psutil.Process(int(submission.job_id or 0))
        if process.status() == psutil.STATUS_ZOMBIE or CONTROLLER not in process.cmdline():
            return None
        # A process with a reused id may be a job of submitit's too, but only ours names this folder.
        folder = Path(submission.output).parent
        return process if str(folder) in process.cmdline() else None
    except psutil.Error:
        return None


def is_running_here(folder: JobFolder, submission: Submission | None) -> bool:
    """True if a job works in the folder: it holds the folder's lock, or is starting and has not taken it yet."""
    return folder.is_running_here() or (submission is not None and supervisor_of(submission) is not None)


def start_job(
    function: LocalJobFunction,
    work: FolderWork,
    shape: JobShape,
    code: Path,
    devices: tuple[int, ...],
    time_limit_seconds: float | None,
) -> subprocess.Popen[bytes]:
    """Start a job on this machine, whose process, which is returned, outlives this one.

    Args:
        code: the snapshot that the job runs.
        devices: their numbers among the visible ones; empty to compute on the CPU.
        time_limit_seconds: None where it has none.
    """
    folder, attempt = work
    python = shlex.join(["env", *(f"{name}={value}" for name, value in variables_of(code).items()), sys.executable])
    minutes = time_limit_seconds / 60 + EXTRA_MINUTES if time_limit_seconds else UNLIMITED_MINUTES
    call = (function, str(folder.path.absolute()), devices, time_limit_seconds)
    process = start_controller(folder.logs.absolute(), python, minutes, call)
    _await_command_line(process)
    job_id, logs = str(process.pid), folder.logs.absolute()
    write_submission(folder, new_submission(attempt, shape, logs, job_id, executor="local", job_id=job_id))
    return process


def _await_command_line(process: subprocess.Popen[bytes]) -> None:
    """Wait until the kernel shows the command of a process that has just been started, by which everybody finds it.

    The start returns once files are closed for the new program, and on a busy machine that can be before its words are
    there. A job that was looked for then seemed to be gone, and went on when all others were ended.
    """
    with contextlib.suppress(psutil.Error):  # it has ended already
        controller = psutil.Process(process.pid)
        while controller.status() != psutil.STATUS_ZOMBIE and not controller.cmdline():
            time.sleep(0.001)


CANCEL_SECONDS = 5.0
"""A job that is interrupted has this long to write down how it ended."""

HOLD_SECONDS = 1.0
STILL = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def end_trees(roots: Iterable[psutil.Process]) -> None:
    """Interrupt the jobs under `roots` and wait for them; what is left after the grace is killed.

    The interrupt goes to the children of the roots: submitit's own process, the root, ends when its job does.
    """
    roots = list(roots)
    # A root that has not started its job yet must not do so while it is being ended: nobody would find that job.
    for root in roots:
        _hold(root)
    trees = [process for root in roots for process in _tree(root)]
    for root in roots:
        jobs = _children(root)
        for job in jobs:
            _send(job, signal.SIGINT)
        _send(root, signal.SIGCONT if jobs else signal.SIGKILL)
    _, alive = psutil.wait_procs(trees, timeout=CANCEL_SECONDS)
    # The trees are looked up again, because a job that is ending may have started further processes.
    for survivor in {process for root in alive for process in _tree(root)}:
        _send(survivor, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=CANCEL_SECONDS)


def _hold(process: psutil.Process) -> None:
    """Stop a process, and return when it stands still, which takes no longer than the kernel takes to say so."""
    _send(process, signal.SIGSTOP)
    deadline = time.monotonic() + HOLD_SECONDS
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() not in STILL and time.monotonic() < deadline:
            time.sleep(0.001)


def _tree(root: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [root, *root.children(recursive=True)]
    return []


def _children(root: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return root.children()
    return []


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


# Limits of memory, as of a container, a job or a user (cgroup version 2 or 1). psutil tells only of the whole host.
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
LIMIT_FILES = {"": "memory.max", "memory": "memory.limit_in_bytes"}
"""The file of a limit by the name of its tree, of which version 1 has one for each resource."""
# Here the kernel driver of AMD lists its devices, also where ROCm's own tools are not installed.
KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True)
class MachineCapacity:
    """The cores, memory and devices of this machine.

    Attributes:
        num_cores: cores that this process may use.
        memory_bytes: of the machine, or of the container.
        num_devices: visible accelerators; 0 on a machine that computes on its cores.
    """

    num_cores: int
    memory_bytes: int
    num_devices: int


@dataclass(frozen=True)
class Share:
    """The part of the machine that one running trial holds."""

    cores: int
    memory_bytes: int
    devices: tuple[int, ...]


def this_machine() -> MachineCapacity:
    # The affinity counts, because a container or `taskset` may leave this process fewer cores than there are.
    return MachineCapacity(len(os.sched_getaffinity(0)), _memory_bytes(), count_devices(os.environ))


def why_impossible(experiment: Experiment, predicted: Estimate | None, machine: MachineCapacity) -> str | None:
    """Return why `machine`, even when idle, cannot run the experiment; None if it can."""
    ranks, needed = experiment.parallel.world_size, memory_needed(experiment, predicted, machine)
    if machine.num_devices and ranks > machine.num_devices:
        return f"needs {count_of(ranks, 'device')}, and this machine has {machine.num_devices}"
    if needed > machine.memory_bytes:
        short = (needed - machine.memory_bytes) / GIBIBYTE
        return (
            f"its {count_of(ranks, 'rank', 'needs', 'need')} {needed / GIBIBYTE:.1f} GiB of this machine's"
            f" {machine.memory_bytes / GIBIBYTE:.1f} GiB of memory, {short:.1f} GiB short"
        )
    return None


def memory_needed(experiment: Experiment, predicted: Estimate | None, machine: MachineCapacity) -> int:
    """Host memory that all ranks together are estimated to need.

    It is 0 on accelerators, whose own memory the plan has checked.
    """
    if machine.num_devices or predicted is None:
        return 0
    parallel = experiment.parallel
    ranks_per_stage = parallel.world_size // parallel.pipeline_parallel_size
    return ranks_per_stage * sum(stage.total_bytes for stage in predicted.stages)


@dataclass
class Ledger:
    """The record of who holds what of the machine. Trials that run at once share neither a core nor a device.

    A trial of more ranks than there are cores takes all of them: its own ranks share, but nobody disturbs them.
    """

    machine: MachineCapacity
    shares: dict[str, Share] = field(default_factory=dict)

    def take(self, trial: Trial) -> Share | None:
        """The trial's share, or None while others hold what it needs."""
        ranks = trial.planned.parallel.world_size
        cores = min(ranks, self.machine.num_cores)
        memory = memory_needed(trial.planned, trial.estimate, self.machine)
        free = self.free_devices()
        if self.machine.num_devices and len(free) < ranks:
            return None
        if not self.machine.num_devices and cores > self.free_cores():
            return None
        # A trial that runs alone is started even when memory looks short: `why_impossible` has compared it with the
        # whole machine, and no other trial will ever end to make room for it.
        if self.shares and memory > self._free_memory():
            return None
        share = Share(cores, memory, tuple(free[:ranks]) if self.machine.num_devices else ())
        self.shares[trial.trial_id] = share
        return share

    def give_back(self, trial_id: str) -> None:
        self.shares.pop(trial_id, None)

    def free_cores(self) -> int:
        return self.machine.num_cores - sum(share.cores for share in self.shares.values())

    def _free_memory(self) -> int:
        # Programs that are not ours take memory too, and have no share here.
        taken = sum(share.memory_bytes for share in self.shares.values())
        return min(self.machine.memory_bytes - taken, psutil.virtual_memory().available)

    def free_devices(self) -> list[int]:
        taken = {device for share in self.shares.values() for device in share.devices}
        return [device for device in range(self.machine.num_devices) if device not in taken]


def count_devices(environment: Mapping[str, str]) -> int:
    """Accelerators that a process with this environment sees.

    The vendor's tool or the kernel driver says how many there are, and each ..._VISIBLE_DEVICES variable may hide some.
    """
    present = _nvidia_devices() or _amd_devices()
    limits = [environment[name] for name in VISIBLE_DEVICES if name in environment]
    return min([present, *(_count_visible(limit) for limit in limits)])


def _count_visible(value: str) -> int:
    """Count the devices that a ..._VISIBLE_DEVICES value names. An invalid entry hides itself and all after it."""
    entries = [entry.strip() for entry in value.split(",")]
    return len(list(takewhile(lambda entry: entry and not entry.startswith("-"), entries)))


def _nvidia_devices() -> int:
    listed = ask("nvidia-smi", "-L")
    # The slices of a GPU (MIG) are listed below it, indented, and are not counted.
    return len(re.findall(r"^GPU \d+:", listed.stdout, re.MULTILINE)) if listed.ok else 0


def _amd_devices() -> int:
    """Nodes of the kernel's topology that have compute units. CPUs are nodes too, with none; each GCD is a node."""
    properties = [path.read_text() for path in KFD_NODES.glob("*/properties") if os.access(path, os.R_OK)]
    return sum(bool(re.search(r"^simd_count [1-9]", text, re.MULTILINE)) for text in properties)


def _memory_bytes() -> int:
    own = OWN_CGROUPS.read_text() if OWN_CGROUPS.exists() else ""
    groups = ((tree, CGROUPS / tree / group) for tree, group in re.findall(r"^\d+:(|memory):/(.*)$", own, re.MULTILINE))
    # The limits of all groups above its own hold for a process too.
    files = [folder / LIMIT_FILES[tree] for tree, group in groups for folder in (group, *group.parents)]
    # Where there is no limit, version 2 says `max`, and version 1 a number larger than any memory.
    limits = [path.read_text().strip() for path in files if path.is_file()]
    return min([psutil.virtual_memory().total, *(int(limit) for limit in limits if limit.isdigit())])
