"""The trainer of a row of a table, by its name or its kind, and the types that it computes in."""

from __future__ import annotations

import re
from typing import Literal

from conf.errors import ConfigError
from conf.types.cluster_spec import ClusterSpec
from conf.types.schema import Dtype, MatmulRecipe, PrecisionPlan
from costs import IMPLEMENTATIONS, Implementation
from costs.trainers import FSDP, TORCHTITAN, TORCHTITAN_COMPILED_LOSS, TORCHTITAN_EAGER
from sweeps.table.cells import FLAGS, Row, choice_of, flag_of, match_in, spellings, text_of

PRECISIONS: dict[str, Dtype] = spellings(
    {
        "bf16": "bf16 bfloat16 amp_bf16 bf16-mixed",
        "fp16": "fp16 float16 amp_fp16 fp16-mixed half",
        "fp32": "fp32 float32",
    }
)
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
    """The types of a row; the trainer decides how fp8 is scaled where the row does not say it."""
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


SPELLINGS = {
    **{name: name for name in IMPLEMENTATIONS},
    **spellings(
        {
            "megatron-core": "megatron mcore megatron-bridge nemo primus",
            "deepspeed": "internevo",
            "fsdp": "fsdp1 fsdp2 ddp llm-foundry composer",
            "torchtitan": "titan",
        }
    ),
}
FLASH_ATTENTION = {
    **FLAGS,
    **spellings({True: "triton/flash triton sdpa te cudnn fused xformers flex", False: "none eager unfused"}),
}
VERSION_OF_FLASH = re.compile(r"flash|(?:fa|v)[-_ ]?[1-4]\b")
"""`FlashAttention-3`, `flash_attention_2`, `FA2`, `v2`."""
SECOND_VERSION = re.compile(r"(?:flash|attention|fa|v)[-_ ]?2\b")
FLASH_ATTENTION_2 = {"attention_rate": 1.0, "attention_since_hopper": FSDP.attention_since_hopper}
"""As fast as any kernel on an A100, and made before Hopper."""
BEFORE_2023 = re.compile(r"(?:0[7-9]|1\d|2[0-2])\d\d\.")
"""How the number of a paper on arXiv begins: its year and month. FlashAttention is of June 2022 (2205.14135), and in
Megatron-LM since the end of that year."""
FACTS: dict[str, dict[bool, dict[str, object]]] = {
    "async_tp": {True: {"tensor_overlap": 1.0}, False: {"tensor_overlap": 0.0}},
    "grouped_gemm": {True: {"groups_experts": True}, False: {"groups_experts": False}},
    "overlap_moe": {True: {"experts_overlap": 1.0}, False: {"experts_overlap": 0.0}},
    "overlap_weight_gradient": {True: {"overlaps_weight_gradient": True}, False: {"overlaps_weight_gradient": False}},
    "cuda_graphs": {True: dict.fromkeys(("launch_seconds", "collective_call_seconds", "micro_batch_seconds"), 0.0)},
    "graphs_layers": {True: {"graphs_layers": True}},
    "launch_blocking": {True: {"blocks_launches": True}},
    "dropout": {True: {"dropout": True}, False: {"dropout": False}},
    # Flat gradients in 16 bits, and in fp32; torch's AdamW without a kernel of its own makes a root and a quotient.
    "unfused_adam": {True: {"update_working_bytes": 2 + 4 + 4 + 4}},
    "unfused_expert_biases": {True: {"unfused_expert_biases": True}},
    "cudnn_attention": {False: {"attention_since_hopper": FSDP.attention_since_hopper}},
}
"""What columns of yes and no decide of a trainer. Without cuDNN's attention there is FlashAttention 2."""
DDP_OR_ZERO = {0: "megatron-lm", 1: "megatron-deepspeed"}


def trainer_of(row: Row, zero_stage: int, given: str | None) -> Implementation:
    """The trainer of a row, with the attention that the row says; where it says none, with the trainer's own.

    Args:
        given: the trainer of rows that name none; None decides by what the row says.
    """
    usual = given or choice_of(row, "usual_implementation", SPELLINGS, default=_usual(row, zero_stage))
    is_named = given is not None or bool(text_of(row, "implementation"))
    chosen = IMPLEMENTATIONS[choice_of(row, "implementation", SPELLINGS, default=usual)]
    if text_of(row, "flash_attention") or (not is_named and _is_flash(row)):
        kernel = FLASH_ATTENTION_2 if SECOND_VERSION.search(text_of(row, "flash_attention").lower()) else {}
        chosen = chosen.model_copy(update={"flash_attention": _is_flash(row), **kernel})
    return as_stated(row, compiled_or_not(row, chosen))


def _is_flash(row: Row) -> bool:
    """True if attention is one fused kernel; where a row does not say it, all of bf16 and narrower since 2023 are."""
    if not text_of(row, "flash_attention"):
        return _is_half(row) and not BEFORE_2023.match(text_of(row, "arxiv"))
    if VERSION_OF_FLASH.match(text_of(row, "flash_attention").lower()):
        return True
    return choice_of(row, "flash_attention", FLASH_ATTENTION, default=False)


def as_stated(row: Row, trainer: Implementation) -> Implementation:
    """The trainer with what columns of the row turn on or off, and as it is by itself where they are blank."""
    update: dict[str, object] = {}
    for column, facts in FACTS.items():
        if text_of(row, column):
            update |= facts.get(flag_of(row, column, default=False), {})
    return trainer.model_copy(update=update)


def compiled_or_not(row: Row, trainer: Implementation) -> Implementation:
    """torchtitan with its layers and its loss compiled or not, which narrow products need; others as they are."""
    if trainer.name != TORCHTITAN.name:
        return trainer
    kind = TORCHTITAN_EAGER
    if flag_of(row, "compile", default=is_narrow(row)):
        kind = TORCHTITAN_COMPILED_LOSS if flag_of(row, "compile_loss", default=False) else TORCHTITAN
    differs = {name: value for name, value in kind if value != getattr(TORCHTITAN, name)}
    return trainer.model_copy(update=differs)


def _usual(row: Row, zero_stage: int) -> str:
    """The trainer by the row's age, which its attention and its precision show, and by what it shares out.

    Flash attention and bf16 or narrower products: Megatron-Core, or FSDP from ZeRO-2 on. Without such a kernel, from
    before FSDP's time: Megatron-LM, or DeepSpeed's ZeRO.
    """
    flash = _is_flash(row)
    if match_in(row, r"\bfsdp|\bddp\b", "zero_stage"):  # plain DDP is priced as FSDP that shares nothing out
        return "fsdp"
    if zero_stage >= 2:
        return "fsdp" if flash else "megatron-deepspeed"
    return "megatron-core" if flash and _is_half(row) else DDP_OR_ZERO[zero_stage]


def _is_half(row: Row) -> bool:
    return is_narrow(row) or "bf16" in text_of(row, "precision").lower()
