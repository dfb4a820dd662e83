"""DeepSpeed's ZeRO without Megatron, as Hugging Face's trainers run it."""

from __future__ import annotations

from train_core.costs.trainers.fsdp import FSDP

DEEPSPEED = FSDP.model_copy(
    update={
        "name": "deepspeed",
        "shards_masters": False,
        "live_parameters": 1_000_000_000,  # stage3_max_live_parameters
        "loss_copies": 3,  # the loss is that of torch, without fusion
    }
)
"""Eager layers; ZeRO-3 gathers and reduces beside computation, like FSDP."""
