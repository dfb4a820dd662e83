"""The types that a row of a table computes in: that of weights and activations, and a narrower one of its products."""

from __future__ import annotations

import re
from typing import Literal

from conf.errors import ConfigError
from conf.types.cluster_spec import ClusterSpec
from conf.types.schema import Dtype, MatmulRecipe, PrecisionPlan
from sweeps.table.cells import Row, choice_of, text_of

PRECISIONS: dict[str, Dtype] = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "amp_bf16": "bf16",
    "bf16-mixed": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "amp_fp16": "fp16",
    "fp16-mixed": "fp16",
    "half": "fp16",
    "fp32": "fp32",
    "float32": "fp32",
}
NARROW = ("fp8", "float8", "amp_fp8", "mxfp8", "nvfp4", "fp4")
"""Precisions of matrix products alone: weights and activations stay in bf16."""
RECIPES: tuple[tuple[str, MatmulRecipe], ...] = (
    (r"fp4", "nvfp4"),
    (r"\bmx|[-_]mx", "mxfp8"),
    (r"block|sub-?channel|[-_ ]sc\b", "fp8-blockwise"),
    (r"row-?wise", "fp8-rowwise"),
    (r"current|tensor-?wise|dynamic|[-_ ]cs\b", "fp8-tensorwise"),
    (r"delayed|hybrid|[-_ ]ds\b", "fp8-delayed"),
)
"""Words of a recipe, the most special first, and what they mean. NVIDIA's tables write FP8-CS, -DS, -SC and -MX."""
GRADIENT_TYPES: dict[str, Literal["fp32", "bf16"]] = {"fp32": "fp32", "bf16": "bf16"}
USUAL_RECIPES: dict[str, MatmulRecipe] = {"torchtitan": "fp8-tensorwise"}
"""How a trainer scales fp8 where a row does not say it; all others do as Transformer Engine does by itself, delayed."""


def precision_of(row: Row, cluster: ClusterSpec, trainer: str) -> PrecisionPlan:
    """The types of a row.

    Args:
        trainer: the name of the trainer, which decides how fp8 is scaled where the row does not say it.
    """
    recipe = recipe_of(row, trainer)
    usual: Dtype = "bf16" if "bf16" in cluster.device.peak_flops_per_second else "fp16"
    dtype: Dtype = "bf16" if recipe else choice_of(row, "precision", PRECISIONS, default=usual)
    return PrecisionPlan(
        dtype=dtype,
        gradient_dtype=choice_of(row, "gradient_dtype", GRADIENT_TYPES, default="fp32"),
        initial_loss_scale=1.0,  # it has no effect on the price; the type wants some value
        loss_scale_window=1,
        matmul_recipe=recipe,
    )


def is_narrow(row: Row) -> bool:
    """True if products are in a narrow type, which its recipe may follow: `fp8 rowwise`, `fp8-blockwise`."""
    return any(text_of(row, column).lower().startswith(NARROW) for column in ("precision", "matmul_precision"))


def recipe_of(row: Row, trainer: str) -> MatmulRecipe | None:
    """The scaling of narrow products; None where all products are in the type of the activations."""
    named = text_of(row, "fp8_recipe")
    if not is_narrow(row):
        if named:
            raise ConfigError("fp8_recipe", named, "needs a narrow precision", "Write fp8 there, or leave this empty.")
        return None
    # The precision itself may say it: `mxfp8`, `fp8 rowwise`.
    words = f"{named} {text_of(row, 'precision')} {text_of(row, 'matmul_precision')}".lower()
    found = next((recipe for pattern, recipe in RECIPES if re.search(pattern, words)), None)
    if found is None and named:
        raise ConfigError("fp8_recipe", named, "is not known here", "Known: delayed, current, rowwise, blockwise, mx.")
    return found or USUAL_RECIPES.get(trainer, "fp8-delayed")
