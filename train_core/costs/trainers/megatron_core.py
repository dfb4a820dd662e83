"""Megatron-Core with Transformer Engine, as NeMo and Megatron-LM run it since 2024."""

from __future__ import annotations

from train_core.costs.trainers.megatron_lm import MEGATRON_LM

MEGATRON_CORE = MEGATRON_LM.model_copy(
    update={
        "name": "megatron-core",
        "flash_attention": True,
        "dropout": False,
        "data_overlap": 1.0,
        "launch_seconds": 20e-6,  # assumed, half of what the hosts and the layers of 2022 take
        "forward_launches": 13,  # norms and biases are fused with what follows them
        "backward_launches": 20,
        "core_launches": 1,
    }
)
"""Fused attention, and a distributed optimizer whose reduction and gathers run beside computation."""
