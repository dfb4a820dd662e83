"""PyTorch FSDP, eager."""

from __future__ import annotations

from train_core.costs.trainers.trisweep import TRISWEEP

FSDP = TRISWEEP.model_copy(
    update={
        "name": "fsdp",
        "counted_moments": False,
        "loss_copies": 0,  # llm-foundry's fused cross entropy
        "overlaps_weight_gradient": False,
        **dict.fromkeys(("groups_experts", "pads_experts", "defers_experts"), True),
        "attention_rate": 0.677,
        "attention_since_hopper": 0.573,
        "memory_traffic": 1.78,
        "stops_recompute_early": True,
        "norm_statistics": 0,
        "keeps_narrow_inputs": True,
        "optimizer_bytes_per_parameter": 34.0,  # gradient read for the norm and the update 8, state 24, weight 2
    }
)
"""PyTorch FSDP, eager, with the flash attention of 2023, as in llm-foundry. Rates and traffic are
fitted with all other constants (benchmarks/fitting), above all on its tables."""
