"""Seconds of one kernel on one device: matrix products through a roofline with tiles, and memory-bound operations."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from train_core.costs.primitives.narrow import NarrowProducts, narrow_flops_per_second, narrowness
from train_core.costs.setting import Floats, Integers, Setting

Number: TypeAlias = Floats | Integers | float | int

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.9), (128, 64, 0.75), (64, 128, 0.75), (64, 64, 0.6))
"""Rows and columns of the output tile that one multiprocessor computes, and its rate relative to the largest.

Source: tile sizes of cuBLAS and CUTLASS as listed in NVIDIA's matrix multiplication guide; the rates are the ratio of
arithmetic to loads, capped. The library is taken to choose the best.
"""
ALIGNMENTS = ((64, 1.0), (32, 0.97), (16, 0.9), (8, 0.5), (4, 0.4), (2, 0.35), (1, 0.25))
"""A row length that only this power of two divides, and the rate that tensor cores keep. Source: shape of figure
"Tensor Core alignment" in NVIDIA's matrix multiplication guide and of arXiv 2401.14489; values are rounded."""
ALIGNMENT_RATES = np.zeros(ALIGNMENTS[0][0] + 1)
ALIGNMENT_RATES[[divisor for divisor, _ in ALIGNMENTS]] = [rate for _, rate in ALIGNMENTS]
PROLOGUE = 128
"""Inner elements by which a tile's pipeline fills and drains: a product of depth k runs at k / (k + PROLOGUE)."""

STREAMED = 0.85
"""Share of the memory bandwidth that a product reaches at least: it fetches tiles ahead of their use, which kernels of
few operations an element cannot. Rounded from what copies reach on A100 and H100 in public benchmarks of the two."""


def matmul_seconds(
    setting: Setting,
    rows: Number,
    columns: Number,
    depth: Number,
    count: Number = 1,
    *,
    recipe: NarrowProducts | None = None,
    result_bytes: int | None = None,
) -> Floats:
    """Return the seconds of `count` independent products (rows, depth) x (depth, columns), launched as one kernel.

    Args:
        recipe: the narrower type in which they multiply; None multiplies in the setting's.
        result_bytes: bytes that an element of the result moves; None writes it once in the setting's type.
    """
    device, efficiency = setting.cluster.device, setting.cluster.efficiency
    m, n, k, c = (np.asarray(size, dtype=np.float64) for size in (rows, columns, depth, count))
    peak = setting.peak_flops_per_second if recipe is None else narrow_flops_per_second(setting)
    width = setting.dtype_bytes if recipe is None else recipe.operand_bytes
    # A cache line holds more elements of a narrow operand, and a tile's pipeline takes as many bytes to fill.
    finer = 1.0 if recipe is None else narrowness(setting)
    computed: Floats = 2.0 * m * n * k * c
    if device.kind != "cpu":
        computed = _padded_flops(device.num_multiprocessors, m, n, k / finer, c) * finer
    moved = ((m * k + k * n) * width + m * n * (result_bytes or setting.dtype_bytes)) * c
    # A roofline: computing and moving overlap, so the slower of the two decides.
    streamed = moved / (device.memory_bandwidth_bytes_per_second * max(efficiency.memory, STREAMED))
    slower: Floats = np.maximum(computed / (peak * efficiency.matmul), streamed)
    return slower + efficiency.kernel_seconds


def _padded_flops(num_multiprocessors: int, m: Floats, n: Floats, k: Floats, count: Floats) -> Floats:
    """FLOPs that the device works through: whole waves of whole tiles, with the tile that takes it least time."""
    # All tiles in one more axis, the first: plans come a few at a time, so that calls cost more than elements.
    dims = max(m.ndim, n.ndim, count.ndim)
    tile_rows, tile_columns, rate = (column.reshape(-1, *[1] * dims) for column in np.array(TILES).T)
    tiles = np.ceil(m / tile_rows) * np.ceil(n / tile_columns) * count
    waves = np.ceil(tiles / num_multiprocessors)
    best: Floats = (waves * (num_multiprocessors * tile_rows * tile_columns / rate)).min(axis=0)
    # A depth of k costs as much as k + PROLOGUE would at the full rate.
    return 2.0 * best * (k + PROLOGUE) / np.minimum(alignment_rate(n), alignment_rate(k))


def alignment_rate(length: Floats) -> Floats:
    """Share of the rate that is left when rows of this length do not start at whole cache lines."""
    return ALIGNMENT_RATES[np.gcd(np.asarray(length, dtype=np.int64), ALIGNMENTS[0][0])]


def _memory_seconds(setting: Setting, num_bytes: Floats) -> Floats:
    device = setting.cluster.device
    return num_bytes / (device.memory_bandwidth_bytes_per_second * setting.cluster.efficiency.memory)


def memory_bound_seconds(setting: Setting, num_bytes: Number, num_kernels: Number = 1) -> Floats:
    """Kernels that read and write `num_bytes` in all."""
    moved = _memory_seconds(setting, np.asarray(num_bytes, dtype=np.float64))
    return moved + num_kernels * setting.cluster.efficiency.kernel_seconds


def attention_seconds(setting: Setting, num_flops: Number) -> Floats:
    """A fused attention kernel, at its own share of the peak."""
    efficiency, kind = setting.cluster.efficiency, setting.implementation
    rate = setting.peak_flops_per_second * efficiency.attention * kind.attention_rate
    if "fp8" in setting.cluster.device.peak_flops_per_second:  # what chips since Hopper have
        rate *= kind.attention_since_hopper
    return np.asarray(num_flops, dtype=np.float64) / rate + efficiency.kernel_seconds
