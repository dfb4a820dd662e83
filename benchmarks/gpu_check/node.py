"""This node as a configuration: the cluster file of its device, or a generic one made of what torch says of it."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.gpu_check.machine import CheckedMachine
from benchmarks.gpu_check.probe import TorchDevice, cluster_of
from conf.compose.load import compose_tree
from conf.compose.tree import Tree, part_at, with_values
from conf.types.schema import Dtype, Value
from conf.units import TERA

PATTERN = "dgx-h100"
"""The stand-in for a device that no file describes, but for what torch says of it."""

GENERIC = "this-node"
TRIED_OUT = "CPU ranks try the script out: no figure here says anything of a GPU."
GUESSED_PEAK, GUESSED_FP32_PEAK = 300 * TERA, 30 * TERA
"""Rates of a device that no file describes. Predictions are as wrong as these; what is measured does not use them."""


class Node(NamedTuple):
    """Attributes:
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
    """The node that this machine is."""
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
        " To have them, add conf/device/NAME.yaml and conf/cluster/NAME.yaml with its data sheet."
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
