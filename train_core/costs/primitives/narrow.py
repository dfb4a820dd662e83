"""Recipes of matrix products in 8 or 4 bits: which peak they run at, and what it takes to cast their operands.

A recipe changes the products of layers alone. The attention core, the head and everything between products stay in the
type of the weights, as in Transformer Engine and torchao.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from conf.types.cluster_spec import DeviceSpec, narrow_dtype
from conf.types.schema import MatmulRecipe
from train_core.costs.setting import Setting

NARROW_BYTES = {"fp8": 1.0, "fp4": 0.5}
HALVING_RATE = 0.9
"""What every halving of an operand's width leaves of the share of the peak that wide products reach: tensor cores must
be fed twice as fast, and the board throttles. One value for all devices; fitted on the rows of GPT-3 175B in fp8 on
H100 (dgxc-benchmarking v24.11.1), which are therefore no test of the prediction."""


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
    peak = setting.cluster.device.peak_flops_per_second[narrow_dtype(setting.matmul_recipe)]
    return float(peak * HALVING_RATE ** log2(narrowness(setting)))


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
