"""The plan of measurements on a cluster: shapes and sizes, and the groups of ranks that cross each link."""

from __future__ import annotations

from typing import Literal

import numpy as np

from conf.types.cluster_spec import ClusterSpec
from conf.types.schema import Dtype
from costs.layer.layer_costs import layer_costs
from costs.layer.shard import Shard
from costs.setting import Setting
from costs.trainers import TRISWEEP
from rates.record import SMALL_LAYER, AttentionShape, LinkPlan, Product, RatesPlan

KIBIBYTE, MEBIBYTE = 2**10, 2**20
MOST_GROUP_SIZES = 4
MOST_MEMORY_SHARE = 1 / 16
"""The largest share of a device's memory for one of the three buffers that are copied."""

LARGE_PRODUCTS = {
    "cpu": ((1024, 1024, 1024), (512, 1024, 1024)),
    "gpu": ((8192, 8192, 8192), (16384, 8192, 8192), (4096, 12288, 12288)),
}
"""Rows, columns and depth of products that are large enough to reach a device's highest rate."""

THIN_PRODUCTS = {
    "cpu": ((128, 768, 256), (128, 384, 256), (128, 256, 1024), (128, 256, 256), (512, 512, 256), (512, 256, 512)),
    "gpu": ((2048, 4608, 12288), (2048, 12288, 1536), (2048, 6144, 12288), (2048, 12288, 6144), (4096, 4608, 12288)),
}
"""Products of one rank of a tensor-parallel layer: on a CPU of the proxies' width, on a GPU of GPT-3 on eight ranks."""

ATTENTION_SHAPES = {
    "cpu": ((1, 8, 128, 32), (4, 4, 128, 32), (1, 4, 512, 64)),
    "gpu": ((8, 16, 2048, 128), (4, 16, 4096, 128)),
}
"""Sequences, heads, length of a sequence, size of a head. On a GPU both take a millisecond and more: of one sequence of
2,048 tokens an H200's host would have been timed, which takes longer to start the kernels than they run."""

BUFFER_BYTES = {"cpu": 128 * MEBIBYTE, "gpu": 1024 * MEBIBYTE}
"""More than caches hold, so that memory itself is measured."""

MESSAGE_BYTES = {
    "cpu": tuple(KIBIBYTE * 8**power for power in range(6)),  # to 32 MiB
    "gpu": tuple(4 * KIBIBYTE * 16**power for power in range(5)),  # to 256 MiB
}


def rates_plan(cluster: ClusterSpec, kind: Literal["gpu", "cpu"], world_size: int) -> RatesPlan:
    """Everything that `world_size` ranks, one on each of consecutive devices, can measure in about a minute.

    Args:
        kind: what the ranks compute on, which on a workstation with GPUs is not the cluster file's `device.kind`.
    """
    buffer_bytes = min(BUFFER_BYTES[kind], int(cluster.device.memory_bytes * MOST_MEMORY_SHARE))
    return RatesPlan(
        kind=kind,
        world_size=world_size,
        dtypes=cluster.device.dtypes,
        large_products=_products(LARGE_PRODUCTS[kind]),
        thin_products=_products(THIN_PRODUCTS[kind]),
        attention_shapes=tuple(
            AttentionShape(num_sequences=b, num_heads=a, seq_length=s, head_size=d)
            for b, a, s, d in ATTENTION_SHAPES[kind]
        ),
        memory_bytes=buffer_bytes,
        num_small_kernels=200,
        kernels_per_layer=kernels_per_layer(cluster),
        links=(*link_plans(cluster, world_size), *(whole_node_plans(cluster, world_size) if kind == "gpu" else ())),
        message_bytes=MESSAGE_BYTES[kind],
        num_samples=5,
        sample_seconds=0.1,
    )


def kernels_per_layer(cluster: ClusterSpec) -> int:
    """The number of kernels that the cost model counts in a layer, forward and backward.

    It is asked and not repeated here: if every kernel takes a second longer, a layer takes so many seconds longer.
    """
    one = np.array([1])
    shard = Shard(one, one, np.array([False]), 0 * one, one, one)

    def seconds(kernel_seconds: float) -> float:
        efficiency = cluster.efficiency.model_copy(update={"kernel_seconds": kernel_seconds})
        costing = cluster.model_copy(update={"efficiency": efficiency})
        costs = layer_costs(Setting(SMALL_LAYER, costing, cluster.device.dtypes[0], TRISWEEP), shard)
        return float((costs.forward_seconds + costs.input_gradient_seconds + costs.weight_gradient_seconds)[0])

    return round(seconds(1.0) - seconds(0.0))


def reference_dtype(kind: Literal["gpu", "cpu"], dtypes: tuple[Dtype, ...]) -> Dtype:
    """The precision whose rates become the efficiencies: what is trained in on GPUs, what proxies train in on CPUs."""
    preferred: tuple[Dtype, ...] = ("bf16", "fp16", "fp32") if kind == "gpu" else ("fp32", "bf16", "fp16")
    return next(dtype for dtype in preferred if dtype in dtypes)


def link_plans(cluster: ClusterSpec, world_size: int) -> tuple[LinkPlan, ...]:
    """The tiers that a job of `world_size` ranks crosses, each with groups that cross no other."""
    plans, stride = [], 1
    for link in cluster.links:
        members = min(link.num_devices, world_size) // stride
        if members > 1:
            sizes = _group_sizes(members)
            plans.append(LinkPlan(name=link.name, stride=stride, num_members=members, group_sizes=sizes))
        stride = link.num_devices
    return tuple(plans)


ALL_PORTS = ", all ports"
"""Behind a link's name: groups of all ranks of its nodes, whose rings leave each through several ports."""


def whole_node_plans(cluster: ClusterSpec, world_size: int) -> tuple[LinkPlan, ...]:
    """A group of all ranks of whole nodes for each tier between nodes that a job reaches."""
    inside = [1, *(link.num_devices for link in cluster.links[:-1])]
    return tuple(
        LinkPlan(name=link.name + ALL_PORTS, stride=1, num_members=size, group_sizes=(size,))
        for link, below in zip(cluster.links, inside, strict=True)
        for size in [min(link.num_devices, world_size) // below * below]
        if below > 1 and size > max(below, cluster.devices_per_node)
    )


def _group_sizes(num_members: int) -> tuple[int, ...]:
    """The group sizes to measure: the smallest powers of two that divide the members, and all members together."""
    sizes = [2**power for power in range(1, num_members.bit_length()) if num_members % 2**power == 0]
    distinct = sorted({*sizes, num_members})
    return tuple(distinct[: MOST_GROUP_SIZES - 1] + distinct[MOST_GROUP_SIZES - 1 :][-1:])


def _products(shapes: tuple[tuple[int, int, int], ...]) -> tuple[Product, ...]:
    return tuple(Product(rows=m, columns=n, depth=k) for m, n, k in shapes)


def groups_of(link: LinkPlan, group_size: int, world_size: int) -> list[list[int]]:
    """Ranks of every group of one size: neighbours among those `stride` apart, in every block of the tier.

    Ranks of an unfinished block, at the end of a job that fills no whole block, belong to no group.
    """
    block = link.stride * link.num_members
    rows = [
        [start + offset + link.stride * member for member in range(link.num_members)]
        for start in range(0, world_size - block + 1, block)
        for offset in range(link.stride)
    ]
    return [row[first : first + group_size] for row in rows for first in range(0, link.num_members, group_size)]
