"""torchtitan: FSDP2 with compiled layers."""

from __future__ import annotations

from train_core.costs.trainers.fsdp import FSDP

TORCHTITAN = FSDP.model_copy(
    update={
        "name": "torchtitan",
        "attention_rate": 1.0,
        "memory_traffic": 1.2,
        "context_ring": False,
        "keeps_narrow_inputs": False,
        "gathers_narrow_weights": True,
    }
)
"""Layers are compiled, so that what lies between matrix products is fused."""
