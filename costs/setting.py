"""The values that all plans of one search share, and the columns in which plans are priced together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from conf.plan.knobs import KNOB
from conf.types.cluster_spec import ClusterSpec
from conf.types.model_spec import ModelSpec
from conf.types.recompute import MODES, Repeated
from conf.types.schema import ContextExchange, Dtype, ExpertDispatcher, Frozen, MatmulRecipe, NonNegative, OptimizerName
from costs.trainers import Implementation


class Scale(Frozen):
    """The cost of communication that computation hides, and that of many devices.

    Attributes:
        shown: share of a collective that still costs although computation runs beside it, because its kernels take
            multiprocessors and memory bandwidth from the computation.
        latency: factor on the latency of every step of a ring.
        slowest: spread of the devices' speeds; the slowest of n is `1 + slowest x sqrt(2 ln n)` times as slow.
        taper: share of the bandwidth between nodes that every doubling of the nodes costs.
        start: seconds that a collective of GPUs takes besides its ring: its kernel starts, and all ranks meet in it.
    """

    shown: Annotated[float, Field(ge=0, le=1)]
    latency: NonNegative
    slowest: NonNegative
    taper: NonNegative
    start: NonNegative


SCALE = Scale(shown=0.534, latency=0.893, slowest=0.013, taper=0.0805, start=2.51e-5)
"""Fitted at once with the constants of chips, networks and trainers to the published rows of benchmarks/ (python -m
benchmarks.fitting), so that none of those tables is a test of them; docs/validation.md leaves each table out."""


Integers: TypeAlias = NDArray[np.integer[Any]]
Floats: TypeAlias = NDArray[np.floating[Any]]
Booleans: TypeAlias = NDArray[np.bool_]
Size = TypeVar("Size", int, Integers)

DTYPE_BYTES: dict[Dtype, int] = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class Setting:
    """A model on a cluster's devices in one precision, trained by one implementation.

    Attributes:
        gradient_dtype: the type in which gradients are accumulated and reduced, if it is narrower than the trainer's
            own.
        matmul_recipe: as in PrecisionPlan.
        expert_tensor_parallel_size: as in ParallelPlan, like the next six: one value for all plans priced together.
        zero_group_size: a search prices the memory of several at once, in a column beside that of the ZeRO stage.
        cluster: as its file says; kept at the pace that its own runs of the trainer had, where it has any.
        scale: what sharing devices and many nodes costs, where the cluster has no constants of its own for that.
        optimizer: of this package's own trainer; others are priced with AdamW.
    """

    model: ModelSpec
    cluster: ClusterSpec
    dtype: Dtype
    implementation: Implementation
    gradient_dtype: Dtype = "fp32"
    matmul_recipe: MatmulRecipe | None = None
    expert_tensor_parallel_size: int | None = None
    zero_group_size: int | Integers | None = None
    offload_optimizer: bool = False
    offload_activations: bool = False
    pipeline_before_data: bool = False
    expert_dispatcher: ExpertDispatcher = "alltoall"
    context_exchange: ContextExchange = "ring"
    scale: Scale = SCALE
    optimizer: OptimizerName = "adamw"

    def __post_init__(self) -> None:
        # Here, so that a search, its bounds and the drawing of a step cannot differ in it.
        object.__setattr__(self, "cluster", self.cluster.at_pace_of(self.implementation.name))

    @property
    def own_scale(self) -> Scale:
        """The `scale`, but for the constants that the cluster has of its own, at the pace of its own runs."""
        own = self.cluster.efficiency.own_scale
        scale = self.scale.model_copy(update=dict(own)) if own else self.scale
        level = self.cluster.efficiency.levels.get(self.implementation.name)
        return scale if level is None else scale.model_copy(update={"start": scale.start * level.factor})

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one accumulated gradient."""
        kind = self.implementation
        own = kind.fp16_gradient_bytes if self.dtype == "fp16" else kind.gradient_bytes
        return min(own, DTYPE_BYTES[self.gradient_dtype])

    @property
    def reduced_bytes(self) -> int:
        """Bytes of one gradient element on the wire."""
        kind = self.implementation
        own = kind.fp16_reduced_bytes if self.dtype == "fp16" else kind.reduced_bytes
        return min(own, DTYPE_BYTES[self.gradient_dtype])

    @property
    def weight_gradient_copy_bytes(self) -> int:
        """Bytes of one element of a weight gradient before it is added up; 0 where its product adds it up itself.

        A GPU's product of narrow matrices does so in fp32 too, a CPU's in no wider type than their own.
        """
        is_copied = self.gradient_bytes != self.dtype_bytes and self.cluster.device.kind == "cpu"
        return self.dtype_bytes if is_copied else 0

    def expert_tensor_size(self, tensor_parallel_size: Size) -> Size:
        """Ranks that share out each expert's matrices: as stated, else as many as share out all others."""
        stated = self.expert_tensor_parallel_size
        return tensor_parallel_size if stated is None else tensor_parallel_size * 0 + stated

    @property
    def peak_flops_per_second(self) -> float:
        return self.cluster.device.peak_flops_per_second[self.dtype]


def repeats(setting: Setting, recompute: Integers, *parts: Repeated) -> Booleans:
    """True where backward makes one of these parts of a layer again; `recompute` are positions in RECOMPUTES."""
    selects = setting.implementation.selective_operators
    by_mode = np.array([not {*parts}.isdisjoint(mode.parts(selects_operators=selects)) for mode in MODES.values()])
    return by_mode[recompute]


class InColumns:
    """Entries side by side: the fields of a dataclass are arrays of n entries, (n, ...), or columns themselves."""

    __slots__ = ()

    def rows(self, selection: Integers | Booleans | slice) -> Self:
        """The selected entries; what is one object stays one."""
        made: dict[int, Any] = {}
        for column in self.columns():
            is_whole = isinstance(column, InColumns)
            if id(column) not in made:
                made[id(column)] = column.rows(selection) if is_whole else column[selection]
        return type(self)(*(made[id(column)] for column in self.columns()))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The entries of all of them, one after another."""
        columns = zip(*(part.columns() for part in parts), strict=True)
        return cls(*(type(of[0]).join(of) if isinstance(of[0], InColumns) else np.concatenate(of) for of in columns))

    def columns(self) -> list[Any]:
        return [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Plans(InColumns):
    """Plans in columns: every array has one entry for each of n plans, (n,). Nothing is checked here.

    Columns let numpy price thousands of plans with the same formulas that price one. A search gives them several axes,
    each column with length 1 along the axes on which it does not depend.

    Attributes:
        recompute: index into RECOMPUTES; `repeats` says what it means.
        recompute_every: as in ParallelPlan; 1 where nothing is recomputed.
        schedule: index into SCHEDULES.
        first_stage_layers: layers of the first stage; the stages between first and last share the rest evenly, the
            earlier ones taking one more where it does not divide.
        last_stage_layers: layers of the last stage; with one stage it equals first_stage_layers.
    """

    tensor_parallel_size: Integers
    pipeline_parallel_size: Integers
    virtual_pipeline_size: Integers
    data_parallel_size: Integers
    micro_batch_size: Integers
    num_micro_batches: Integers
    sequence_parallel: Booleans
    zero_stage: Integers
    recompute: Integers
    recompute_every: Integers
    schedule: Integers
    first_stage_layers: Integers
    last_stage_layers: Integers
    context_parallel_size: Integers
    expert_parallel_size: Integers

    def __len__(self) -> int:
        return len(self.tensor_parallel_size)

    @property
    def world_size(self) -> Integers:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.num_replicas

    @property
    def num_replicas(self) -> Integers:
        """Ranks that hold the same weights, and among which gradients are reduced and ZeRO shares out."""
        return self.data_parallel_size * self.context_parallel_size


WORTH_LOOKING_UP = 16
"""A column with fewer entries is computed as it is."""


def by_distinct(plans: Plans, column: str, count: Callable[[Plans], Integers]) -> Integers:
    """Return `count(plans)`, computed once for each value of a column that a search repeats, and then looked up.

    A search crosses few numbers of micro-batches with many ways of recomputation, and numpy is slow to divide integers.

    Args:
        count: may read this column, and those that do not depend on the shard.
    """
    values = getattr(plans, column)
    if values.ndim == 1 or values.shape[1] < WORTH_LOOKING_UP:
        return count(plans)
    # In a search layouts lie on the last axis alone: (ZeRO stages, shards, layouts).
    if any(each.shape[1] > 1 for each in (plans.pipeline_parallel_size, plans.virtual_pipeline_size, plans.schedule)):
        return count(plans)
    distinct = np.array(sorted(set(values.ravel().tolist())))  # np.unique takes longer for so few
    counted = count(replace(plans, **{column: distinct.reshape(1, -1, 1)}))
    return counted if counted.shape[1] == 1 else counted.take(np.searchsorted(distinct, values.ravel()), axis=1)


def plain_columns(shape: tuple[int, ...]) -> dict[str, Any]:
    """Columns of `Plans` with every knob at its plain value, by name; columns that no knob states are left out."""
    plain = {name: KNOB[name].entry(KNOB[name].plain) for name in Plans.__slots__ if name in KNOB}
    return {name: np.full(shape, entry) for name, entry in plain.items()}
