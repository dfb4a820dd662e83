"""The machine, for people elsewhere: devices, versions, links and variables, and nobody's names or paths.

As a configuration it is the cluster file of its device, or a generic one made of what torch says of it.
"""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

from benchmarks.gpu_check.probe import Probe, TorchDevice, cluster_of
from conf.compose.load import compose_tree
from conf.compose.tree import Tree, part_at, with_values
from conf.types.schema import Dtype, Frozen, Value
from conf.units import GIBIBYTE, TERA
from launcher.external_commands import ask
from launcher.local.machine import this_machine
from train_core.process.git_sha import git_sha

RELEVANT = re.compile(
    r"^(NCCL|RCCL|CUDA|HIP|ROCR|HSA|GPU|AMD|TORCH|PYTORCH|TORCHINDUCTOR|MIOPEN|OMP|MKL|FI|UCX|GLOO|OPENBLAS)_"
    r"|^(SLURM_JOB_NUM_NODES|SLURM_CPUS_PER_TASK|SLURM_GPUS_ON_NODE)$"
)
"""Variables that change how a training behaves."""

DRIVER_FILES = (Path("/sys/module/nvidia/version"), Path("/sys/module/amdgpu/version"))
TOPOLOGY_COMMANDS = (("nvidia-smi", "topo", "-m"), ("rocm-smi", "--showtopotype"))
CPU_INFO = Path("/proc/cpuinfo")
CPU_RANKS = 4


class CheckedMachine(Frozen):
    """The machine.

    Attributes:
        num_ranks: the ranks that run at once: one for each GPU, or more, which then share GPUs.
        versions: of torch, driver and so on, by name.
        processor: the host's, with its number of usable cores.
        topology: what the vendor's tool says of the links between GPUs; empty without such a tool.
        variables: those of the environment that change how a training behaves.
    """

    kind: Literal["gpu", "cpu"]
    devices: tuple[TorchDevice, ...]
    num_ranks: int
    versions: dict[str, str]
    processor: str
    host_memory_bytes: int
    topology: str
    variables: dict[str, str]

    @property
    def num_devices(self) -> int:
        """The GPUs that are used, or CPU ranks."""
        return min(len(self.devices) or self.num_ranks, self.num_ranks)

    @property
    def shares_devices(self) -> bool:
        return self.num_ranks > self.num_devices

    @property
    def device_text(self) -> str:
        """`8 x NVIDIA H200`, and other names where the GPUs differ."""
        names = Counter(device.name for device in self.devices)
        gpus = ", ".join(f"{count} x {name}" for name, count in names.items())
        shared = f", shared by {self.num_ranks} ranks" if self.shares_devices else ""
        return f"{gpus}{shared}" if gpus else f"{self.num_ranks} CPU ranks"


def machine_of(probe: Probe, num_ranks: int | None) -> CheckedMachine:
    """This machine, with the GPUs of the probe, or with ranks on its cores where that has none."""
    host = this_machine()
    on_cpu = not probe.devices
    return CheckedMachine(
        kind="cpu" if on_cpu else "gpu",
        devices=probe.devices,
        num_ranks=num_ranks or len(probe.devices) or CPU_RANKS,
        versions=_versions(probe),
        processor=f"{_processor()}, {host.num_cores} usable cores",
        host_memory_bytes=host.memory_bytes,
        topology="" if on_cpu else _topology(),
        variables={name: value for name, value in sorted(os.environ.items()) if RELEVANT.match(name)},
    )


def _versions(probe: Probe) -> dict[str, str]:
    driver = next((path.read_text().strip() for path in DRIVER_FILES if path.exists()), "")
    runtime, _, runtime_version = probe.runtime.partition(" ")
    collectives, _, collectives_version = probe.collectives.partition(" ")
    found = {
        "Trisweep": f"{version('trisweep')} ({git_sha()})",
        "torch": probe.torch or version("torch"),
        runtime: runtime_version,
        collectives: collectives_version,
        "driver": driver if probe.devices else "",
        "Python": platform.python_version(),
        "Linux": platform.release(),
    }
    return {name: value for name, value in found.items() if name and value}


def _processor() -> str:
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _topology() -> str:
    """The answer of the first tool that there is."""
    for command in TOPOLOGY_COMMANDS:
        result = ask(*command)
        if result.ok:
            return re.sub(r"\x1b\[[0-9;]*m", "", result.stdout).strip()  # nvidia-smi underlines its headings
    return ""


def links_in(topology: str) -> str:
    """The kinds of links between GPUs, counted, from the tool's matrix: `NV18 (28 pairs)`."""
    kinds: Counter[str] = Counter()
    for line in topology.splitlines():
        words = line.split()
        if not re.match(r"GPU\d+\s+(?!GPU\d)", line):
            continue  # no row of a GPU; the line of headings begins like one, but goes on with a name
        # Columns of other devices follow those of the GPUs. Of each pair, the upper half of the matrix names it once.
        row = int(words[0][3:])
        kinds.update(words[row + 2 : 1 + _num_columns(topology)])
    return ", ".join(f"{kind} ({count} pair{'s' if count > 1 else ''})" for kind, count in kinds.most_common())


def _num_columns(topology: str) -> int:
    """The number of GPUs that head the columns of the matrix."""
    heads = (line.split() for line in topology.splitlines() if re.match(r"\s*GPU0\s+GPU1", line))
    return sum(bool(re.fullmatch(r"GPU\d+", word)) for word in next(heads, []))


def device_lines(machine: CheckedMachine) -> Mapping[str, str]:
    """The lines of the report on the machine, by name; an unknown one is left out."""
    first = machine.devices[0] if machine.devices else None
    gpu = first and (
        f"{first.memory_bytes / GIBIBYTE:.1f} GiB, {first.num_multiprocessors} multiprocessors,"
        f" capability {first.capability}"
    )
    lines = {
        "devices": machine.device_text + (f" ({gpu})" if gpu else ""),
        "links": links_in(machine.topology) if len(machine.devices) > 1 else "",
        "versions": ", ".join(f"{name} {value}" for name, value in machine.versions.items()),
        "host": f"{machine.processor}, {machine.host_memory_bytes / GIBIBYTE:.0f} GiB",
        "variables": ", ".join(f"{name}={value}" for name, value in machine.variables.items()),
    }
    return {name: text for name, text in lines.items() if text}


PATTERN = "dgx-h100"
"""The stand-in for a device that no file describes, but for what torch says of it."""

GENERIC = "this-node"
TRIED_OUT = "CPU ranks try the script out: no figure here says anything of a GPU."
GUESSED_PEAK, GUESSED_FP32_PEAK = 300 * TERA, 30 * TERA
"""Rates of a device that no file describes. Predictions are as wrong as these; what is measured does not use them."""


class Node(NamedTuple):
    """The configuration of one node like this one.

    Attributes:
        tree: the configuration.
        cluster: the file it comes from; None where the device is in none.
        remark: what the reader of predictions has to know; empty where there is nothing.
    """

    tree: Tree
    cluster: str | None
    remark: str

    @property
    def narrow(self) -> Dtype:
        """The 16-bit precision of the device. A V100 has no bf16."""
        return "bf16" if "bf16" in part_at(self.tree, "cluster.device.peak_flops_per_second") else "fp16"


def node_of(machine: CheckedMachine) -> Node:
    if machine.kind == "cpu":
        tree = compose_tree(["model=tiny", "cluster=local"])
        return Node(with_values(tree, _sizes(machine)), "local", TRIED_OUT)
    first = machine.devices[0]
    cluster = cluster_of(first)
    tree = compose_tree(["model=tiny", f"cluster={cluster or PATTERN}"])
    if cluster is not None:
        return Node(with_values(tree, {**_sizes(machine), **_memory(first)}), cluster, "")
    remark = (
        f"No file in conf/device describes {first.name}, so predictions of time are guesses (those of memory are not)."
        " To have them, add conf/device/NAME.yaml with its data sheet, and conf/cluster/NAME.yaml with gpu_names."
    )
    return Node(with_values(tree, {**_sizes(machine), **_generic(first)}), None, remark)


def _sizes(machine: CheckedMachine) -> dict[str, Value]:
    return {"cluster.num_nodes": 1, "cluster.devices_per_node": machine.num_ranks}


def _memory(device: TorchDevice) -> dict[str, Value]:
    """The memory that torch sees, which is less than the data sheet says by what the driver keeps."""
    return {
        "cluster.device.memory_bytes": device.memory_bytes,
        "cluster.device.memory_source": "torch, on this machine",
    }


def _generic(device: TorchDevice) -> dict[str, object]:
    narrow = "fp16" if _lacks_bf16(device) else "bf16"
    return {
        "cluster.name": GENERIC,
        "cluster.gpu_names": [],
        "cluster.device.name": device.name,
        **_memory(device),
        "cluster.device.num_multiprocessors": device.num_multiprocessors,
        "cluster.device.peak_flops_per_second": {narrow: GUESSED_PEAK, "fp32": GUESSED_FP32_PEAK},
        "cluster.device.peak_source": "measured",  # the trainer then holds its rate against a product in the same run
        "cluster.efficiency.source": f"taken over from {PATTERN}: a guess",
    }


def _lacks_bf16(device: TorchDevice) -> bool:
    """NVIDIA's chips before Ampere. AMD's tell their architecture instead of a number."""
    major = device.capability.split(".")[0]
    return major.isdecimal() and int(major) < 8
