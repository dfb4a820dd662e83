"""How GPUs compute: environment variables for streams and memory, set here or by a job, and kernels that repeat bits.

A stream is served by a hardware queue. NVIDIA's take the next kernel of a stream as soon as one has started. AMD's are
fewer, and streams that share one wait for each other: a receive that spins until its sender comes can so keep the very
work from starting that the sender waits for. Which streams share a queue is up to HIP.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from conf.types.schema import Schedule

HIGH_PRIORITY = "TORCH_NCCL_HIGH_PRIORITY"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The allocator's settings by their name and by the one that older releases of torch read."""

HARDWARE_QUEUES = "GPU_MAX_HW_QUEUES"
HIP_QUEUES, ENOUGH_QUEUES = 4, 8
"""The queues of each priority that HIP uses unless told otherwise, and those that a rank without experts needs.

Source: `Device::acquireQueue` in rocclr/device/rocm/rocdevice.cpp and rocclr/utils/flags.hpp of github.com/ROCm/clr.
"""


def set_defaults(environment: MutableMapping[str, str], *, is_hip: bool) -> None:
    """Set what speeds training up and is not set yet. Has to come before the first group and before CUDA is used."""
    # The backward pass starts a sum before the product that hides it. Without priority a product that fills the whole
    # device could start first, and the sum would run after it. On AMD's it also keeps them off the computation's queue.
    environment.setdefault(HIGH_PRIORITY, "1")
    # Buckets of ZeRO-2 come and go, which would leave gaps between segments of fixed size. HIP has no others.
    if not is_hip and not environment.keys() & set(ALLOCATOR):
        environment.update(dict.fromkeys(ALLOCATOR, "expandable_segments:True"))


def require_hardware_queues(experiment: Experiment, environment: Mapping[str, str]) -> None:
    """Raises ConfigError for a pipeline on AMD's GPUs whose streams could come to wait for each other in a circle."""
    given = environment.get(HARDWARE_QUEUES, "")
    allowed = int(given) if given.isdecimal() else HIP_QUEUES
    streams = num_communicators(experiment)
    if environment.get(HIGH_PRIORITY, "1") == "0":  # else the queues of the computation are others
        streams += 1
    schedule = experiment.parallel.schedule
    needed = least_queues(schedule, streams)
    if experiment.parallel.pipeline_parallel_size > 1 and allowed < needed:
        problem = f"{streams} streams need {needed} hardware queues, and {HARDWARE_QUEUES} allows {allowed}"
        remedy = f"Export {HARDWARE_QUEUES}={max(needed, ENOUGH_QUEUES)} in the job, as slurm=frontier does."
        raise ConfigError("parallel.schedule", schedule, f"{problem}: the stages could wait for each other", remedy)


def least_queues(schedule: Schedule, num_streams: int) -> int:
    """The fewest hardware queues on which so many streams cannot hang, however they share them.

    Found by an abstract machine that tries all ways for the executor's launches (tests/train_core/parallel).
    """
    match schedule:
        case "gpipe":
            return 1
        case "interleaved":
            return num_streams
        case _:  # any two streams may share one
            return num_streams - 1


def num_communicators(experiment: Experiment) -> int:
    """The number of groups of the rank that has most: four channels, its axes and the world."""
    parallel = experiment.parallel
    p, is_ring = parallel.pipeline_parallel_size, parallel.virtual_pipeline_size > 1
    at_ends = (4 if is_ring else 2) + 1  # with the group of the tied embedding
    inside = 4 if p > 2 else 0
    axes = [parallel.tensor_parallel_size, parallel.context_parallel_size, experiment.num_replicas]
    if experiment.model.experts is not None:
        num_ranks = parallel.world_size // p  # of a stage, which share out its experts or are replicas of them
        axes += [parallel.expert_parallel_size, num_ranks // parallel.expert_parallel_size]
    return max(at_ends, inside) + sum(size > 1 for size in axes) + 1


CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED = ":4096:8"
"""Eight buffers of 4 MiB. cuBLAS else shares its memory out among streams as they come, and sums in other orders.

Source: cuBLAS documentation, "Results reproducibility".
"""


@contextmanager
def same_bits(is_wanted: bool) -> Iterator[None]:
    """Inside the block torch takes deterministic kernels, where that is wanted, and refuses operations without one.

    To be entered before the first product on a GPU, after which cuBLAS no longer looks at its variable. CPUs compute
    the same with and without.
    """
    if not is_wanted:
        yield
        return
    import torch  # here: `make gpu-check` reads the settings above also where torch cannot be imported
    from torch.utils import deterministic

    os.environ.setdefault(CUBLAS_WORKSPACE, FIXED)
    memory: Any = deterministic  # has its setting only since it was imported, which mypy does not see
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # Filling would be a pass over every new tensor, for those who read what they have not written.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        memory.fill_uninitialized_memory = fills
