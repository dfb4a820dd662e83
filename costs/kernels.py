"""Seconds of one kernel on one device: matrix products through a roofline with tiles, and memory-bound operations.

A recipe of products in 8 or 4 bits has a peak of its own, and casts of operands that cost time. It changes the products
of layers alone: the attention core, the head and everything between products stay in the type of the weights, as in
Transformer Engine and torchao.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import TypeAlias

import numpy as np

from conf.types.cluster_spec import DeviceSpec, narrow_dtype
from conf.types.schema import MatmulRecipe
from costs.setting import Floats, Integers, Setting

NARROW_BYTES = {"fp8": 1.0, "fp4": 0.5}
HALVING_RATE = 0.9
"""What every halving of an operand's width leaves of the share of the peak that wide products reach: tensor cores must
be fed twice as fast, and the board throttles. On H100, H200 and GH200 the fastest fp8 product of all reaches 0.88 to
0.93 of the share that the fastest one in bf16 does. Other makers' chips are taken to be like these. Source: Bekman,
Machine Learning Engineering, compute/accelerator, maximum achievable matmul FLOPS, as of August 2026."""
HALVING_RATE_OF_BLACKWELL = 0.97
"""The same on NVIDIA's chips that multiply in 4 bits: 0.95 to 0.99 on B300, B200 and GB200. Same source."""


@dataclass(frozen=True, slots=True)
class NarrowProducts:
    """The form of a narrow product: how its operands are cast, and what that costs.

    Attributes:
        operand_bytes: of one element, its share of the scales included.
        reads: passes over a wide operand until it is cast. Scales that are known beforehand need one; the largest value
            of a whole tensor has to be found first.
        copies: narrow copies that a cast writes: where scales run along the inner dimension, the product for the
            weight gradient needs a second one, scaled along the other.
        kernels: launches of one cast.
        gathers_narrow: tensor ranks gather operands, and data ranks weights, that are cast already.
    """

    operand_bytes: float
    reads: int
    copies: int
    kernels: int
    gathers_narrow: bool

    def cast_bytes(self, wide_bytes: int) -> float:
        """Bytes that casting one element moves, without a transposed copy."""
        return self.reads * wide_bytes + self.copies * self.operand_bytes

    def transposed_bytes(self, device: DeviceSpec) -> float:
        """Bytes that a transposed copy of one element moves: none where no product wants it, or a cast writes it."""
        return 2 * self.operand_bytes if wants_transposes(device) and self.copies == 1 else 0.0


RECIPES: dict[MatmulRecipe, NarrowProducts] = {
    "fp8-delayed": NarrowProducts(1.0, reads=1, copies=1, kernels=1, gathers_narrow=True),
    "fp8-tensorwise": NarrowProducts(1.0, reads=2, copies=1, kernels=2, gathers_narrow=True),
    "fp8-rowwise": NarrowProducts(1.0, reads=4, copies=2, kernels=4, gathers_narrow=False),
    "fp8-blockwise": NarrowProducts(1.0 + 4 / 128, reads=1, copies=2, kernels=1, gathers_narrow=False),
    "mxfp8": NarrowProducts(1.0 + 1 / 32, reads=1, copies=2, kernels=2, gathers_narrow=False),
    "nvfp4": NarrowProducts(0.5 + 1 / 16, reads=3, copies=2, kernels=3, gathers_narrow=False),
}
"""Sources: Transformer Engine's recipes DelayedScaling, Float8CurrentScaling, Float8BlockScaling, MXFP8BlockScaling and
NVFP4BlockScaling, and torchao's tensorwise and rowwise. Along rows and along columns the largest value is found and the
operand cast, each in a pass of its own. In fp4 the largest value of the tensor is found, and the copy for the weight
gradient goes through a random Hadamard transform first. Scales have 4 bytes for 128 elements, 1 for 32, and 1 for 16.
"""


def recipe_of(setting: Setting) -> NarrowProducts | None:
    """The recipe of a setting; None where products run in the type of the weights."""
    return None if setting.matmul_recipe is None else RECIPES[setting.matmul_recipe]


def narrowness(setting: Setting) -> float:
    """Return how many elements of a narrow operand take the bytes of a wide one, without their scales."""
    assert setting.matmul_recipe is not None
    return setting.dtype_bytes / NARROW_BYTES[narrow_dtype(setting.matmul_recipe)]


def narrow_flops_per_second(setting: Setting) -> float:
    """The peak of narrow products, at the share that feeding them leaves."""
    assert setting.matmul_recipe is not None
    device = setting.cluster.device
    is_blackwell = device.maker == "nvidia" and "fp4" in device.peak_flops_per_second
    rate = HALVING_RATE_OF_BLACKWELL if is_blackwell else HALVING_RATE
    return float(device.peak_flops_per_second[narrow_dtype(setting.matmul_recipe)] * rate ** log2(narrowness(setting)))


def gathers_narrow(setting: Setting, recipe: NarrowProducts) -> bool:
    """True if tensor ranks gather operands that are cast already."""
    return recipe.gathers_narrow and setting.implementation.gathers_narrow_operands


def gathered_share(setting: Setting) -> float:
    """Bytes of an operand that tensor ranks gather, relative to one in the type of the weights."""
    recipe = recipe_of(setting)
    return recipe.operand_bytes / setting.dtype_bytes if recipe and gathers_narrow(setting, recipe) else 1.0


def gathered_weight_bytes(setting: Setting) -> float:
    """Bytes of a weight on the wire when data ranks gather it: narrow where one scale for the tensor goes with it."""
    recipe = recipe_of(setting)
    if recipe is None or not (recipe.gathers_narrow and setting.implementation.gathers_narrow_weights):
        return float(setting.dtype_bytes)
    return recipe.operand_bytes


def wants_transposes(device: DeviceSpec) -> bool:
    """True if its narrow products read operands along the inner dimension alone, so that some need a transposed copy.

    Hopper's do; the chips that multiply in 4 bits take any layout. Source: Transformer Engine, fp8_primer.
    """
    return "fp4" not in device.peak_flops_per_second


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

ADDED_SHOWN = 0.5
"""Share of the bytes of a result that is added to what is there already which no computation hides: a tile is read and
written when its products are made, while some tiles of its multiprocessor still multiply. Half is a guess, between all
and nothing; leaving sources out prefers it to either (docs/cost-model.md)."""


def matmul_seconds(
    setting: Setting,
    rows: Number,
    columns: Number,
    depth: Number,
    count: Number = 1,
    *,
    recipe: NarrowProducts | None = None,
    added_bytes: int | None = None,
) -> Floats:
    """Return the seconds of `count` independent products (rows, depth) x (depth, columns), launched as one kernel.

    Args:
        recipe: the narrower type in which they multiply; None multiplies in the setting's.
        added_bytes: bytes that an element of the result moves where it is added to what is there already; None writes
            it once in the setting's type.
    """
    device, efficiency = setting.cluster.device, setting.cluster.efficiency
    m, n, k, c = (np.asarray(size, dtype=np.float64) for size in (rows, columns, depth, count))
    peak = setting.peak_flops_per_second if recipe is None else narrow_flops_per_second(setting)
    width = setting.dtype_bytes if recipe is None else recipe.operand_bytes
    # A cache line holds more elements of a narrow operand, and a tile's pipeline takes as many bytes to fill.
    finer = 1.0 if recipe is None else narrowness(setting)
    computed: Floats = 2.0 * m * n * k * c
    operands, result = (m * k + k * n) * width * c, m * n * c * (added_bytes or setting.dtype_bytes)
    bandwidth = device.memory_bandwidth_bytes_per_second * max(efficiency.memory, STREAMED)
    shown: Floats | float = 0.0
    if device.kind != "cpu":
        computed = _padded_flops(device.num_multiprocessors, m, n, k / finer, c) * finer
        shown = ADDED_SHOWN * result / bandwidth if added_bytes else 0.0
    # A roofline: computing and moving overlap, so the slower of the two decides.
    slower: Floats = np.maximum(computed / (peak * efficiency.matmul) + shown, (operands + result) / bandwidth)
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


def memory_bound_seconds(setting: Setting, num_bytes: Number, num_kernels: Number = 1) -> Floats:
    """Kernels that read and write `num_bytes` in all."""
    device, efficiency = setting.cluster.device, setting.cluster.efficiency
    moved = np.asarray(num_bytes, dtype=np.float64) / (device.memory_bandwidth_bytes_per_second * efficiency.memory)
    return moved + num_kernels * efficiency.kernel_seconds


def attention_seconds(setting: Setting, num_flops: Number) -> Floats:
    """A fused attention kernel, at its own share of the peak."""
    efficiency, kind = setting.cluster.efficiency, setting.implementation
    rate = setting.peak_flops_per_second * efficiency.attention * kind.attention_rate
    if "fp8" in setting.cluster.device.peak_flops_per_second:  # what chips since Hopper have
        rate *= kind.attention_since_hopper
    return np.asarray(num_flops, dtype=np.float64) / rate + efficiency.kernel_seconds
