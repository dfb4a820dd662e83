"""The trainer of a row of a table: the one that it names, the one that its source is known for, or the usual one."""

from __future__ import annotations

import re

from sweeps.table.cells import FLAGS, Row, choice_of, text_of
from sweeps.table.precision import is_narrow
from sweeps.table.remarks import said
from train_core.costs import IMPLEMENTATIONS, Implementation

SPELLINGS = {
    **{name: name for name in IMPLEMENTATIONS},
    "megatron": "megatron-core",
    "mcore": "megatron-core",
    "megatron-bridge": "megatron-core",
    "nemo": "megatron-core",
    "primus": "megatron-core",
    "internevo": "deepspeed",
    "fsdp1": "fsdp",
    "fsdp2": "fsdp",
    "ddp": "fsdp",
    "llm-foundry": "fsdp",
    "composer": "fsdp",
    "titan": "torchtitan",
}
KNOWN_SOURCES = (
    (r"torchtitan", "torchtitan"),
    (r"megatron-?deepspeed", "megatron-deepspeed"),
    (r"megatron-(?:core|bridge)|\bnemo\b|\bprimus\b|transformer engine|simumax", "megatron-core"),
    (r"internevo", "deepspeed"),
    (r"llm-foundry|\bfsdp", "fsdp"),
    (r"\bddp\b", "fsdp"),
)
"""What a source says of itself, and its trainer. InternEvo runs eager layers around flash attention and shares its
optimizer out among replicas, as DeepSpeed does. Plain DDP is priced as FSDP that shares nothing out."""
FLASH_ATTENTION = {
    **FLAGS,
    "triton/flash": True,
    "triton": True,
    "sdpa": True,
    "te": True,
    "cudnn": True,
    "fused": True,
    "xformers": True,
    "none": False,
    "eager": False,
    "unfused": False,
}
VERSION_OF_FLASH = re.compile(r"flash|(?:fa|v)[-_ ]?[1-4]\b")
"""`FlashAttention-3`, `flash_attention_2`, `FA2`, `v2`."""
BEFORE_2023 = re.compile(r"(?:0[7-9]|1\d|2[0-2])\d\d\.")
"""How the number of a paper on arXiv begins: its year and month. FlashAttention is of June 2022 (2205.14135), and in
Megatron-LM since the end of that year."""
DDP_OR_ZERO = {0: "megatron-lm", 1: "megatron-deepspeed"}


def trainer_of(row: Row, zero_stage: int, given: str | None) -> Implementation:
    """The trainer of a row, with the attention that the row says; where it says none, with the trainer's own.

    Args:
        given: the trainer of rows that name none; None decides by what the row says.
    """
    usual = given or _known_source(row) or _usual(row, zero_stage)
    is_named = given is not None or bool(text_of(row, "implementation"))
    chosen = IMPLEMENTATIONS[choice_of(row, "implementation", SPELLINGS, default=usual)]
    for as_said in (_overlapping, _grouping, _exchanging):
        chosen = as_said(row, chosen)
    if not text_of(row, "flash_attention") and (is_named or not _is_flash(row)):
        return chosen
    return chosen.model_copy(update={"flash_attention": _is_flash(row)})


def _is_flash(row: Row) -> bool:
    """Whether attention is one fused kernel; where a row does not say it, all of bf16 and narrower since 2023 are."""
    if not text_of(row, "flash_attention"):
        return _is_half(row) and not BEFORE_2023.match(text_of(row, "arxiv"))
    if VERSION_OF_FLASH.match(text_of(row, "flash_attention").lower()):
        return True
    return choice_of(row, "flash_attention", FLASH_ATTENTION, default=False)


def _grouping(row: Row, trainer: Implementation) -> Implementation:
    """The trainer without one product for all experts of a rank, where the row says so."""
    is_apart = said(row, r"no grouped[- ]?gemm", ("notes",))
    return trainer.model_copy(update={"groups_experts": False}) if is_apart else trainer


def _exchanging(row: Row, trainer: Implementation) -> Implementation:
    """The trainer with experts' exchanges beside the passes of another micro-batch, where the row says so.

    Megatron-Core's `--overlap-moe-expert-parallel-comm`.
    """
    is_beside = said(row, r"1f1b (?:all-to-all|a2a|ep) overlap|overlap_moe_expert_parallel_comm", ("notes",))
    return trainer.model_copy(update={"experts_overlap": 1.0}) if is_beside else trainer


def _overlapping(row: Row, trainer: Implementation) -> Implementation:
    """The trainer with tensor-parallel collectives beside their products, or not, where the row says either.

    NeMo and Megatron-Bridge turn that on; Megatron-LM's own script has to be told, and InternEvo cannot.
    """
    if said(row, r"(no|without) tp[- ]?comm\w* overlap|vanilla tp"):
        return trainer.model_copy(update={"tensor_overlap": 0.0})
    if said(row, r"async[- ]?tp|tp[- ]?comm\w* overlap|user ?buffers"):
        return trainer.model_copy(update={"tensor_overlap": 1.0})
    if said(row, r"megatron-lm|oellm|internevo", ("source", "implementation")):
        return trainer.model_copy(update={"tensor_overlap": 0.0})
    return trainer


def _known_source(row: Row) -> str | None:
    # Notes may name a trainer in passing, so that the source speaks first.
    for columns in (("source", "series"), ("zero_stage", "notes")):
        if found := next((name for pattern, name in KNOWN_SOURCES if said(row, pattern, columns)), None):
            return found
    return "deepspeed" if said(row, r"\bdeepspeed\b", ("source",)) else None


def _usual(row: Row, zero_stage: int) -> str:
    """The trainer by the row's age, which its attention and its precision show, and by what it shares out.

    Flash attention and bf16 or narrower products: Megatron-Core, or FSDP from ZeRO-2 on. Without such a kernel, from
    before FSDP's time: Megatron-LM, or DeepSpeed's ZeRO.
    """
    flash = _is_flash(row)
    if zero_stage >= 2:
        return "fsdp" if flash else "megatron-deepspeed"
    return "megatron-core" if flash and _is_half(row) else DDP_OR_ZERO[zero_stage]


def _is_half(row: Row) -> bool:
    return is_narrow(row) or "bf16" in text_of(row, "precision").lower()
