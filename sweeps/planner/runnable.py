"""What a trainer can run of what a search may choose."""

from __future__ import annotations

from collections.abc import Mapping

from conf.knobs import KNOB, KnobValue
from train_core.costs import Implementation

RUN_BY: Mapping[str, frozenset[str]] = {
    "pointwise": frozenset({"trisweep", "megatron-core"}),
    "context_parallel_size": frozenset({"megatron-core", "torchtitan"}),
    "expert_parallel_size": frozenset({"megatron-core", "torchtitan", "deepspeed"}),
    "zero_group_size": frozenset({"megatron-core", "fsdp", "torchtitan", "deepspeed"}),
    "offload_optimizer": frozenset({"megatron-core", "deepspeed"}),
    "pipeline_before_data": frozenset({"megatron-core"}),
}
"""Trainers that run other values of a knob than its plain one, or this recomputation."""


def runs(trainer: Implementation, knob: str, value: KnobValue) -> bool:
    """Whether the trainer runs plans in which the knob has this value."""
    if value == KNOB[knob].plain:
        return True
    needed = RUN_BY.get(value if knob == "recompute" and isinstance(value, str) else knob)
    return needed is None or trainer.name in needed
