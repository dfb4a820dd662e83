"""What a trainer can run of what a search may choose."""

from __future__ import annotations

from functools import lru_cache

from conf.knobs import KnobValue
from conf.schema import Value
from train_core.costs import Implementation
from train_core.costs.trainers.declared_limits import CAPABILITIES


def runs(trainer: Implementation, knob: str, value: KnobValue, *, pipeline: bool = False, tensor: bool = False) -> bool:
    """Whether the trainer runs plans in which the knob has this value.

    Args:
        pipeline: in plans with several stages.
        tensor: in plans with several tensor ranks.
    """
    # How layers are spread is a kind of its own, about which `layouts` asks.
    return isinstance(value, tuple) or _allows(trainer.name, knob, value, pipeline, tensor)


def interleaves_unevenly(trainer: Implementation) -> bool:
    """Whether it interleaves chunks that differ in layers, and any number of micro-batches.

    Others take equal chunks, and micro-batches in groups of as many as there are stages (arXiv 2104.04473, section
    2.2.2). Source of Megatron-Core: --decoder-first-pipeline-num-layers, --microbatch-group-size-per-vp-stage.
    """
    return trainer.name in ("trisweep", "megatron-core")


@lru_cache(maxsize=4096)  # asked for every block of a search
def _allows(trainer: str, knob: str, value: Value, pipeline: bool, tensor: bool) -> bool:
    return CAPABILITIES[trainer].allows(knob, value, pipeline=pipeline, tensor=tensor)
