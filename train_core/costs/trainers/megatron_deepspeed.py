"""Megatron-DeepSpeed of 2022 and 2023."""

from __future__ import annotations

from train_core.costs.trainers.megatron_lm import MEGATRON_LM

MEGATRON_DEEPSPEED = MEGATRON_LM.model_copy(
    update={
        "name": "megatron-deepspeed",
        "memory_traffic": 0.876,
        "overlaps_weight_gradient": False,
        "fp16_gradient_bytes": 2,
        "reduced_bytes": 2,
        "kept_outputs": "part",
        "live_parameters": 1_000_000_000,  # DeepSpeed's stage3_max_live_parameters
        "sharded_messages": 12,  # the weights and biases of a layer: each is gathered by itself
        "sharded_overlap": 1.0,
    }
)
"""Megatron-DeepSpeed with DeepSpeed's pipeline and ZeRO-1, as for BLOOM and on Frontier (2022-2023)."""
