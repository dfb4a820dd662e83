"""torchtitan: FSDP2 with compiled layers."""

from __future__ import annotations

from train_core.costs.trainers.fsdp import FSDP

TORCHTITAN = FSDP.model_copy(
    update={
        "name": "torchtitan",
        "attention_rate": 1.0,
        "memory_traffic": 0.999,
        "context_ring": False,
        "keeps_narrow_inputs": False,
        "gathers_narrow_weights": True,
        "selective_operators": True,
        "copies_shards": True,
        "loss_copies": 3,  # the logits, their log-softmax and its gradient, none of which is compiled
        "split_loss_copies": 4,  # torch's loss_parallel shifts the logits in a pass of its own
    }
)
"""Layers are compiled, so that what lies between matrix products is fused; but for rotary positions, which are complex
numbers in fp32 that the compiler leaves alone. `memory_traffic` is fitted with all others (benchmarks/fitting)."""
TORCHTITAN_EAGER = TORCHTITAN.model_copy(update={"memory_traffic": FSDP.memory_traffic, "keeps_unused_outputs": True})
"""The same with `compile.enable = false`, which is torchtitan's default; its traffic is that of any eager FSDP."""
TORCHTITAN_COMPILED_LOSS = TORCHTITAN.model_copy(update={"loss_copies": 1})
"""Since April 2025 what compiles the layers compiles the loss too (torchtitan's pull request 1033). That one copy in
fp32 is left is fitted on the two rows of its H200 page, which are no test of it."""
