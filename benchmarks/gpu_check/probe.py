"""This machine's GPUs, and the cluster file that describes them: `python -m benchmarks.gpu_check.probe` prints as JSON
what torch sees.

It is a process of its own, so that a broken driver, which can crash or hang, cannot take the whole check with it, and
so that no other process of the check holds memory of a GPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache

from conf.compose.load import cluster_named
from conf.folders import options
from conf.types.cluster_spec import ClusterSpec, DeviceSpec
from conf.types.schema import Frozen
from train_core.process.git_sha import ROOT

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


PROBE_SECONDS = 120.0
"""Importing torch from a cold network file system can take a minute."""


class Probe(Frozen):
    """The answer of torch.

    Attributes:
        runtime: `CUDA 12.8` or `HIP 6.3`; empty where torch was built for neither.
        collectives: version of NCCL, or of RCCL on AMD; empty without.
        problem: why nothing could be asked; empty where all went well.
    """

    devices: tuple[TorchDevice, ...] = ()
    torch: str = ""
    runtime: str = ""
    collectives: str = ""
    problem: str = ""


def probe_gpus() -> Probe:
    """Ask in a process of its own. Whatever goes wrong there is told as `problem`."""
    command = [sys.executable, "-m", "benchmarks.gpu_check.probe"]
    try:
        asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Probe(problem=f"torch did not answer what GPUs there are within {PROBE_SECONDS:g} s")
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"])[-1]
        return Probe(problem=f"asking torch for the GPUs failed: {last}")
    return Probe.model_validate_json(asked.stdout.splitlines()[-1])


def _here() -> Probe:
    import torch

    hip = torch.version.hip
    runtime = f"HIP {hip}" if hip else f"CUDA {torch.version.cuda}" if torch.version.cuda else ""
    properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    devices = [_device(each, is_hip=bool(hip)) for each in properties]
    version = ".".join(map(str, torch.cuda.nccl.version())) if devices else ""
    collectives = f"{'RCCL' if hip else 'NCCL'} {version}" if version else ""
    return Probe(devices=tuple(devices), torch=str(torch.__version__), runtime=runtime, collectives=collectives)


def _device(properties: object, *, is_hip: bool) -> TorchDevice:
    # It tells AMD's chips apart, whose `major.minor` says little. On NVIDIA's it is the name once more.
    arch = getattr(properties, "gcnArchName", "") if is_hip else ""
    return TorchDevice.model_validate(
        {
            "name": getattr(properties, "name", "unknown"),
            "memory_bytes": getattr(properties, "total_memory", 0),
            "num_multiprocessors": getattr(properties, "multi_processor_count", 0),
            "capability": arch or f"{getattr(properties, 'major', 0)}.{getattr(properties, 'minor', 0)}",
        }
    )


if __name__ == "__main__":
    print(_here().model_dump_json())
