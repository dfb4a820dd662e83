"""Every legal plan of one model on one number of devices, in blocks of columns that numpy broadcasts.

A block holds the plans of one tensor- and one pipeline-parallel size: all shards (micro-batch, sequence parallelism,
recomputation) x all layouts (schedule, chunks, spread of layers) x all ZeRO stages. What depends on the ZeRO stage only
has the shape (z, 1, 1), on the shard only (1, s, 1), on the layout only (1, 1, l), so that it is computed once.
Legal is what `conf.experiment` accepts; a test feeds plans from here to there and back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import gcd, isqrt
from typing import Any, TypeAlias, TypeVar

import numpy as np

from conf.knobs import KNOB, RECOMPUTES, SCHEDULES, SEARCHED_KNOBS, KnobValue, Listed
from sweeps.planner.strategy import even_ends
from train_core.costs.counts.computable import largest_micro_batch_size
from train_core.costs.setting import Booleans, Integers, Plans, Setting, plain_columns
from train_core.costs.step.schedule import INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE

MOST_LAYERS_LIGHTER = 4
"""The first and the last stage are tried with up to this many layers less than an even spread gives them. What they
hold besides layers, embedding and head, weighs up to 2.6 layers in the models of conf/model (a Llama 3.1 8B's head)."""
MOST_ZERO_STAGE = 3
SEARCHED_SCHEDULES = tuple(name for name in SCHEDULES if name != "gpipe")
"""GPipe takes as long as 1F1B and keeps the activations of all micro-batches, so it is never chosen."""

ENDS = ("first_stage_layers", "last_stage_layers")
Value = TypeVar("Value", bound=KnobValue)
PipelineShape: TypeAlias = tuple[int, int, int, int]
"""Index of the schedule, chunks of a stage, layers of the first stage and of the last."""
Selection: TypeAlias = Integers | slice


@dataclass(frozen=True, slots=True)
class Space:
    """What a search enumerates.

    Attributes:
        pinned: knobs that have only this value, by their name in `conf.knobs`; `layers_per_stage: None` spreads evenly.
    """

    setting: Setting
    world_size: int
    global_batch_size: int
    tensor_parallel_across_nodes: bool = False
    pinned: Mapping[str, KnobValue] = field(default_factory=dict)

    def allowed(self, knob: str, values: Sequence[Value]) -> list[Value]:
        """The values that the knob may still have: all of them, or the pinned one if it is among them."""
        return [value for value in values if knob not in self.pinned or self.pinned[knob] == value]


@dataclass(frozen=True, slots=True)
class PlanGrid:
    """Plans of one tensor- and pipeline-parallel size, crossed: ZeRO stages x shards x layouts.

    Attributes:
        plans: columns of the shapes (z, 1, 1), (1, s, 1) and (1, 1, l).
        legal: which of them can exist, (1, s, l); it does not depend on the ZeRO stage.
    """

    plans: Plans
    legal: Booleans

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.plans.zero_stage.size, *self.legal.shape[1:])

    @property
    def num_strategies(self) -> int:
        return int(np.count_nonzero(self.legal)) * self.shape[0]

    def part(self, stages: Selection, shards: Selection, layouts: Selection) -> PlanGrid:
        """The block of these ZeRO stages, shards and layouts."""
        columns = (_part(getattr(self.plans, name), stages, shards, layouts) for name in Plans.__slots__)
        return PlanGrid(Plans(*columns), self.legal[:, shards][:, :, layouts])

    def rows(self, index: Integers) -> Plans:
        """Plans by their number in the block, as columns, (n,)."""
        where = np.unravel_index(index, self.shape)
        return Plans(*(np.broadcast_to(getattr(self.plans, name), self.shape)[where] for name in Plans.__slots__))


def _part(column: Any, *selections: Selection) -> Any:
    """The selected entries of a column, which has one entry along the axes on which it does not depend."""
    for axis, selection in enumerate(selections):
        if column.shape[axis] > 1:
            column = column[(*(slice(None),) * axis, selection)]
    return column


def divisors(number: int) -> list[int]:
    """All divisors of the number, ascending."""
    return list(_divisors(number))


@lru_cache(maxsize=1024)  # a search asks many times for the divisors of few numbers
def _divisors(number: int) -> tuple[int, ...]:
    small = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return (*small, *(number // size for size in reversed(small) if size * size != number))


def tensor_parallel_sizes(space: Space) -> list[int]:
    """Divisors of everything that tensor parallelism splits; inside a node unless the space says otherwise."""
    model, cluster = space.setting.model, space.setting.cluster
    # Zero, which every number divides, leaves the greatest common divisor below as it is.
    split = gcd(model.num_attention_heads, model.num_query_groups, model.ffn_hidden_size, model.vocab_size)
    one_node = space.world_size <= cluster.devices_per_node
    inside = 0 if space.tensor_parallel_across_nodes or one_node else cluster.devices_per_node
    return space.allowed("tensor_parallel_size", divisors(gcd(split, space.world_size, inside)))


def pipeline_parallel_sizes(space: Space, tensor_parallel_size: int) -> list[int]:
    """Every number of stages that the devices allow and that leaves no stage without a layer."""
    most = space.setting.model.num_layers
    sizes = [size for size in divisors(space.world_size // tensor_parallel_size) if size <= most]
    return space.allowed("pipeline_parallel_size", sizes)


def priced_batch_sizes(space: Space) -> list[int]:
    """Every divisor of the batch that can be priced: the micro-batches of any number of replicas."""
    most = largest_micro_batch_size(space.setting.model)
    return [size for size in divisors(space.global_batch_size) if size <= most]


def micro_batch_sizes(space: Space, data_parallel_size: int) -> list[int]:
    """The micro-batches that divide a replica's share of the batch; none if the batch has no equal shares."""
    share, surplus = divmod(space.global_batch_size, data_parallel_size)
    sizes = [] if surplus else [size for size in priced_batch_sizes(space) if share % size == 0]
    return space.allowed("micro_batch_size", sizes)


def zero_stages(space: Space, pipeline_parallel_size: int, data_parallel_size: int) -> list[int]:
    """The ZeRO stages that can exist; 3, which also shares out the weights, only without a pipeline.

    A single replica shares nothing out, so that all its stages are one plan. It takes the pinned stage, else 0.
    """
    if data_parallel_size == 1 and "zero_stage" not in space.pinned:
        return [0]
    return space.allowed("zero_stage", list(range(MOST_ZERO_STAGE + (pipeline_parallel_size == 1))))


def layer_ends(num_layers: int, num_stages: int) -> list[tuple[int, int]]:
    """Layers of the first and the last stage: even first, then lighter ends, the rest spread evenly between them."""
    # Of equally fast plans a search keeps the first one, so the even spread comes first.
    even = even_ends(num_layers, num_stages)
    lighter = range(MOST_LAYERS_LIGHTER + 1)
    if num_stages == 1:
        return [even]
    if num_stages == 2:
        pairs = [(num_layers - last, last) for last in (even[1] - less for less in lighter)]
        pairs += [(first, num_layers - first) for first in (even[0] - less for less in lighter)]
    else:
        pairs = [(even[0] - less, even[1] - lesser) for less, lesser in product(lighter, lighter)]
    return [pair for pair in dict.fromkeys(pairs) if min(pair) > 0]


def layouts(space: Space, num_stages: int) -> list[PipelineShape]:
    """Schedule, chunks of a stage, layers of the first and of the last stage: the plainest first."""
    num_layers = space.setting.model.num_layers
    even, ends = even_ends(num_layers, num_stages), _allowed_ends(space, num_stages)
    plain = [(ONE_F_ONE_B, 1, *pair) for pair in ends]
    if num_stages == 1:
        return _allowed_layouts(space, plain)
    # The trainer cuts stages into equal chunks, so interleaving needs the same number of layers on every stage.
    chunks = divisors(num_layers // num_stages)[1:] if num_layers % num_stages == 0 and even in ends else []
    chunked = [(INTERLEAVED, num_chunks, *even) for num_chunks in chunks]
    return _allowed_layouts(space, [*plain, *chunked, *((ZERO_BUBBLE, 1, *pair) for pair in ends)])


def _allowed_ends(space: Space, num_stages: int) -> list[tuple[int, int]]:
    num_layers = space.setting.model.num_layers
    if "layers_per_stage" not in space.pinned:
        return layer_ends(num_layers, num_stages)
    listed = space.pinned["layers_per_stage"]
    if listed is None:
        return [even_ends(num_layers, num_stages)]
    assert isinstance(listed, tuple)
    return [(listed[0], listed[-1])] if len(listed) == num_stages else []


def _allowed_layouts(space: Space, shapes: list[PipelineShape]) -> list[PipelineShape]:
    chunks = set(space.allowed("virtual_pipeline_size", sorted({shape[1] for shape in shapes})))
    schedules = {SCHEDULES.index(name) for name in space.allowed("schedule", SEARCHED_SCHEDULES)}
    return [shape for shape in shapes if shape[0] in schedules and shape[1] in chunks]


def enumerated(space: Space) -> dict[str, list[Listed]]:
    """Every value that each knob takes in some legal plan, ascending; the spread of layers by its two ends."""
    seen: dict[str, set[Any]] = {name: set() for name in (*SEARCHED_KNOBS, *ENDS) if name != "layers_per_stage"}
    for block in blocks(space):
        for name, entries in seen.items():
            column = getattr(block.plans, name)
            others = tuple(axis for axis in range(3) if column.shape[axis] == 1)
            used = np.broadcast_to(block.legal.any(axis=others, keepdims=True), column.shape)
            entries.update(column[used].tolist())
    return {
        name: [KNOB[name].value(entry) if name in KNOB else entry for entry in sorted(entries)]
        for name, entries in seen.items()
    }


def blocks(space: Space) -> Iterator[PlanGrid]:
    """The whole space: every legal plan in exactly one block."""
    for tensor_parallel_size in tensor_parallel_sizes(space):
        for pipeline_parallel_size in pipeline_parallel_sizes(space, tensor_parallel_size):
            block = _block(space, tensor_parallel_size, pipeline_parallel_size)
            if block is not None and block.num_strategies:
                yield block


def _block(space: Space, t: int, p: int) -> PlanGrid | None:
    d = space.world_size // (t * p)
    if not space.allowed("data_parallel_size", [d]):
        return None
    shards, arranged, stages = shards_of(space, t, d), layouts(space, p), zero_stages(space, p, d)
    if not (shards and arranged and stages):
        return None
    b, sequence_parallel, recompute = (_column(values, (1, -1, 1)) for values in zip(*shards, strict=True))
    schedule, v, first, last = (_column(values, (1, 1, -1)) for values in zip(*arranged, strict=True))
    m = space.global_batch_size // (d * b)
    # Interleaving takes micro-batches in groups of as many as there are stages. All else is legal by construction.
    legal = (schedule != INTERLEAVED) | (m % p == 0)
    chosen = {
        "tensor_parallel_size": _column([t], (1, 1, 1)),
        "pipeline_parallel_size": _column([p], (1, 1, 1)),
        "virtual_pipeline_size": v,
        "data_parallel_size": _column([d], (1, 1, 1)),
        "micro_batch_size": b,
        "num_micro_batches": m,
        "sequence_parallel": sequence_parallel.astype(bool),
        "zero_stage": _column(stages, (-1, 1, 1)),
        "recompute": recompute,
        "schedule": schedule,
        "first_stage_layers": first,
        "last_stage_layers": last,
    }
    plans = Plans(**{**plain_columns((1, 1, 1)), **chosen})
    return PlanGrid(plans, legal)


def shards_of(space: Space, t: int, d: int) -> list[tuple[int, int, int]]:
    """Micro-batch, sequence parallelism and index of the recomputation: what a layer's cost depends on."""
    splits_sequences = t > 1 and space.setting.model.seq_length % t == 0
    sequence_parallel = space.allowed("sequence_parallel", [False, True] if splits_sequences else [False])
    recompute = [RECOMPUTES.index(name) for name in space.allowed("recompute", RECOMPUTES)]
    return list(product(micro_batch_sizes(space, d), sequence_parallel, recompute))


def _column(values: Sequence[int], shape: tuple[int, ...]) -> Integers:
    return np.array(values, dtype=np.int64).reshape(shape)
