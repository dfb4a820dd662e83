"""The capacity of this machine: cores, memory, accelerators.

All of it is found without torch, which takes seconds to import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from conf.plan.experiment import Experiment
from conf.units import GIBIBYTE, count_of
from launcher.tools import ask
from sweeps.trial import Trial
from train_core.costs import Estimate

# A container's memory limit (cgroup version 2, then version 1). psutil tells only of the whole host.
CGROUP_MEMORY = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
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
    count = 0
    for entry in value.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        count += 1
    return count


def _nvidia_devices() -> int:
    listed = ask("nvidia-smi", "-L")
    # The slices of a GPU (MIG) are listed below it, indented, and are not counted.
    return len(re.findall(r"^GPU \d+:", listed.stdout, re.MULTILINE)) if listed.ok else 0


def _amd_devices() -> int:
    """Nodes of the kernel's topology that have compute units. CPUs are nodes too, with none; each GCD is a node."""
    properties = [path.read_text() for path in KFD_NODES.glob("*/properties") if os.access(path, os.R_OK)]
    return sum(bool(re.search(r"^simd_count [1-9]", text, re.MULTILINE)) for text in properties)


def _memory_bytes() -> int:
    # Where there is no limit, version 2 says `max`, and version 1 a number larger than any memory.
    limits = [path.read_text().strip() for path in CGROUP_MEMORY if path.exists()]
    return min([psutil.virtual_memory().total, *(int(limit) for limit in limits if limit.isdigit())])
