"""DeepSpeed's ZeRO without Megatron, as Hugging Face's trainers run it."""

from __future__ import annotations

from train_core.costs.trainers.fsdp import FSDP

DEEPSPEED = FSDP.model_copy(update={"name": "deepspeed"})
"""Eager layers; ZeRO-3 gathers and reduces beside computation, like FSDP."""
