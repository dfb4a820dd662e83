"""Megatron-Core with Transformer Engine, as NeMo and Megatron-LM run it since 2024."""

from __future__ import annotations

from train_core.costs.trainers.megatron_lm import MEGATRON_LM

MEGATRON_CORE = MEGATRON_LM.model_copy(
    update={
        "name": "megatron-core",
        "flash_attention": True,
        "memory_traffic": 0.946,
        "dropout": False,
        "tensor_overlap": 1.0,
        "keeps_narrow_inputs": True,
        "gathers_narrow_weights": True,
        **dict.fromkeys(("loss_copies", "split_loss_copies"), 1),  # the softmax is made in place of the fp32 logits
        "rotated_copies": True,
        "data_overlap": 1.0,
        "overlaps_chunk_transfers": True,
        "loss_passes": (3, 1),
        "launch_seconds": 2.66e-5,  # assumed, half of what the hosts and the layers of 2022 take
        "forward_launches": 13,  # norms and biases are fused with what follows them
        "backward_launches": 20,
        "core_launches": 1,
        "sharded_overlap": 1.0,
    }
)
"""Fused attention, and a distributed optimizer whose reduction and gathers run beside computation."""
