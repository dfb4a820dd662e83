"""The cluster file that describes the GPUs of this machine."""

from __future__ import annotations

import re
from functools import cache

from conf.compose.load import cluster_named
from conf.folders import options
from conf.types.cluster_spec import ClusterSpec, DeviceSpec
from conf.types.schema import Frozen

MEMORY_SHARE = 0.1
"""The driver keeps a part of the memory for itself: torch sees a few percent less than the data sheet says."""

OTHER_FORMS = frozenset({"PCIe", "NVL"})
"""Cards that bear a module's name and reach less: an H100 NVL has the SXM's multiprocessors at a lower clock."""


class TorchDevice(Frozen):
    """A GPU as torch sees it."""

    name: str
    memory_bytes: int
    num_multiprocessors: int
    capability: str


def cluster_of(device: TorchDevice) -> str | None:
    """A cluster whose device this is; None where no file describes it."""
    return next((cluster.name for cluster in _clusters_with_gpus() if _describes(cluster.device, device)), None)


@cache
def _clusters_with_gpus() -> tuple[ClusterSpec, ...]:
    clusters = (cluster_named(name) for name in options("cluster"))
    return tuple(cluster for cluster in clusters if cluster.gpu_names)


def _describes(known: DeviceSpec, found: TorchDevice) -> bool:
    """True if the data sheet is this device's: `NVIDIA H200` is in `H200-141GB`, and a 32 GB V100 is no 16 GB one."""
    words, ours = set(re.split(r"[-\s]", found.name)), set(re.split(r"[-\s]", known.name))
    named = re.split(r"[-\s]", known.name)[0] in words and not (words - ours) & OTHER_FORMS
    memory = abs(found.memory_bytes / known.memory_bytes - 1) <= MEMORY_SHARE
    return known.kind == "gpu" and named and memory and found.num_multiprocessors == known.num_multiprocessors
