"""The terms of a step's seconds and of a rank's bytes, declared once for a single plan and for columns of plans.

These are plain dataclasses, because a search builds thousands of them; pydantic checks them inside an `Estimate`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import ClassVar, Generic, TypeAlias, TypeVar

from pydantic import ConfigDict

from costs.setting import Floats, Integers

Number = TypeVar("Number")
CHECKED = ConfigDict(extra="forbid", strict=True)  # as `conf.types.schema.Frozen` is


@dataclass(frozen=True)
class SecondsByTerm(Generic[Number]):
    """Seconds of one step. The terms add up to it.

    Micro-batches go at the pace of the slowest stage. The reduction after them is the one that ends last of all stages,
    and the update the longest of all.

    Attributes:
        compute_seconds: matrix products and memory-bound operations, recomputation included.
        tensor_seconds: collectives inside layers, among tensor and context ranks and among those that share experts.
        pipeline_seconds: sending activations and their gradients between stages.
        bubble_seconds: waiting for the pipeline to fill and drain, and for slower stages.
        data_seconds: reducing gradients and gathering weights over replicas.
        optimizer_seconds: the update, bound by memory bandwidth.
        waiting_seconds: waiting for the slowest of many devices.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CHECKED

    compute_seconds: Number
    tensor_seconds: Number
    pipeline_seconds: Number
    bubble_seconds: Number
    data_seconds: Number
    optimizer_seconds: Number
    waiting_seconds: Number

    @property
    def total_seconds(self) -> Number:
        """The sum in the order of the terms, which decides its last digit."""
        return reduce(add, self.by_term().values())

    def by_term(self) -> dict[str, Number]:
        return {name: getattr(self, name) for name in STEP_TERMS}


StepTime: TypeAlias = SecondsByTerm[float]
StepColumns: TypeAlias = SecondsByTerm[Floats]
STEP_TERMS = tuple(field.name for field in fields(SecondsByTerm))


def row_of(columns: StepColumns, index: int) -> StepTime:
    """The terms of one plan, taken out of the columns of many."""
    return StepTime(*(float(column[index]) for column in columns.by_term().values()))


@dataclass(frozen=True)
class HeldBytes(Generic[Number]):
    """Bytes of the tensors on one rank of a pipeline stage, by what they hold.

    Attributes:
        activations_bytes: kept by all micro-batches in flight, stage inputs and outputs included, and what waits for
            the weight gradients that a zero-bubble schedule puts off.
        working_bytes: held by the layer, or the head, while it runs backward.
        communication_bytes: receive buffers, gathered sequences and, under ZeRO-3, gathered layers.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CHECKED

    weights_bytes: Number
    gradients_bytes: Number
    optimizer_bytes: Number
    activations_bytes: Number
    working_bytes: Number
    logits_bytes: Number
    communication_bytes: Number

    @property
    def total_bytes(self) -> Number:
        return self._sum(*HELD_KINDS)

    def _sum(self, *names: str) -> Number:
        return reduce(add, (getattr(self, name) for name in names))


HELD_KINDS = tuple(field.name for field in fields(HeldBytes))


@dataclass(frozen=True)
class BytesByKind(HeldBytes[Number]):
    """All bytes on one rank of a pipeline stage.

    Attributes:
        reserved_bytes: framework and fragmentation.
        parameters: how many the rank holds.
    """

    reserved_bytes: Number
    parameters: Number

    @property
    def allocated_bytes(self) -> Number:
        """The bytes of tensors: all but the framework's share and fragmentation."""
        return self._sum(*HELD_KINDS)

    @property
    def total_bytes(self) -> Number:
        # What depends on the same choices is added first, which keeps the arrays of a search small.
        state = self._sum("weights_bytes", "gradients_bytes", "optimizer_bytes")
        others = ("reserved_bytes", "working_bytes", "logits_bytes", "communication_bytes", "activations_bytes")
        return add(state, self._sum(*others))

    def by_kind(self) -> dict[str, Number]:
        """Bytes by name of what they hold, without the number of parameters."""
        return {name: getattr(self, name) for name in MEMORY_KINDS}


MEMORY_KINDS = (*HELD_KINDS, "reserved_bytes")
StageMemory: TypeAlias = BytesByKind[int]


@dataclass(frozen=True)
class GroupMemory(BytesByKind[Integers]):
    """The fullest stage of a group of equal stages, for many plans, in columns, (n,).

    Attributes:
        stage: index of that stage; the first one of equals.
    """

    stage: Integers
