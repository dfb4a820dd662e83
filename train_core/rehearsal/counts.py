"""The results of a rehearsal, as values that print and serialize. No torch."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from conf.types.schema import Frozen
from train_core.costs.counts.traffic import GroupTraffic
from train_core.costs.terms import HeldBytes

StageBytes: TypeAlias = HeldBytes[int]
"""Bytes on one rank at the fullest moment of a step."""


class StageStep(Frozen):
    """One step of the first rank of a stage.

    Attributes:
        flops: of its matrix products, recomputation included, attention over the full square.
    """

    stage: int
    num_layers: int
    memory: StageBytes
    flops: int
    traffic: Annotated[tuple[GroupTraffic, ...], Field(strict=False)]


class Rehearsal(Frozen):
    """One step of the real trainer, rehearsed on fake tensors: counted, neither measured nor predicted.

    Attributes:
        stages: the first rank of every pipeline stage.
        flops: of all ranks; every tensor rank and replica of a stage computes as much as its first rank.
        num_rehearsed: stages that were rehearsed; the others do exactly what one of these does.
    """

    label: str
    world_size: int
    num_micro_batches: int
    flops: int
    stages: Annotated[tuple[StageStep, ...], Field(strict=False)]
    num_rehearsed: int
