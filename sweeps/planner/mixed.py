"""One job over devices of several types: consecutive pipeline stages on each type, layers in proportion to its speed.

Every type takes one block of stages, all of its devices, and a number of layers that its stages share evenly, in groups
of equal stages; tensor- and data-parallel sizes are the same everywhere, so that a replica's pipeline crosses all
types. Pipelines run 1F1B. The search goes through all sizes, micro-batches, ZeRO stages, orders of the types and
numbers of layers for each, with and without sequence parallelism and with every recomputation.

A lower bound of the step's time, from the layers of the pipeline alone, tells which assignments cannot be among the
best, and only the others are priced. The result stays as exact as if all were tried, which tests do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import reduce
from itertools import permutations, product
from math import factorial, gcd, inf
from typing import NamedTuple

import numpy as np

from conf.errors import InfeasiblePlan
from conf.overrides import value_text
from conf.units import GIBIBYTE
from costs import StepTime
from costs.layer.shard import NONE
from costs.mixed import StagesOnType, TypeOfDevices, block_shortfall, mixed_step
from costs.setting import Floats, Integers, Plans, plain_columns
from costs.stages import StageGroup
from costs.terms import StepColumns, row_of
from sweeps.memory_odds import LIKELY, MemoryOdds, in_words
from sweeps.planner.plans.bounds import SLACK
from sweeps.planner.plans.shard_work import ShardWork, price_shards
from sweeps.planner.plans.space import (
    ShardChoice,
    Sizes,
    Space,
    divisors,
    priced_batch_sizes,
    require_few_types,
    shards_of,
    tensor_parallel_sizes,
    zero_stages,
)
from sweeps.planner.plans.strategy import Strategy, strategies_of

MOST_ROWS_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class MixedBlock:
    """Consecutive stages on one type of devices, with the layers of each, first to last."""

    cluster: str
    device: str
    num_devices: int
    layers_per_stage: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MixedStrategy:
    """The layout of one job over several types of devices, with its prediction.

    Attributes:
        strategy: the plan of the whole pipeline, with the layers of every stage.
        worst_stage: the stage that leaves the least of its device's memory.
        fit_likelihood: the probability that the stages fit that take the largest part of their device's memory.
    """

    strategy: Strategy
    blocks: tuple[MixedBlock, ...]
    step_terms: StepTime
    step_seconds: float
    worst_stage: int
    worst_stage_bytes: int
    fit_likelihood: float

    @property
    def is_likely(self) -> bool:
        return self.fit_likelihood >= LIKELY

    @property
    def odds_in_words(self) -> str:
        return in_words(self.fit_likelihood)

    @property
    def num_devices(self) -> int:
        return self.strategy.parallel.world_size

    def overrides(self) -> list[str]:
        """Hydra overrides that choose this strategy and the devices that it is for."""
        blocks = "+".join(f"{block.cluster}:{block.num_devices}" for block in self.blocks)
        # The first block's cluster stands for all where a job has one cluster: its folder's name and Slurm settings.
        return [f"cluster={self.blocks[0].cluster}", f"mixed={blocks}", *self.strategy.overrides()]


@dataclass(frozen=True, slots=True)
class MixedChoice:
    """The result of a search of mixed jobs: all legal assignments, and those that the bound did not rule out.

    Attributes:
        crowded: the assignment that is faster than the best and leaves too little memory free, if any.
        none_likely: no assignment is likely to fit, so that those are chosen among that fit on paper.
    """

    num_strategies: int
    num_priced: int
    best: tuple[MixedStrategy, ...]
    crowded: MixedStrategy | None
    none_likely: bool
    search_seconds: float


@dataclass(frozen=True, slots=True)
class _Sizes:
    """One tensor- and data-parallel size, with bounds of all that can be done with it.

    Attributes:
        counts: number of stages of each type's block, in the order of `spaces`.
        shards: micro-batch, sequence parallelism, recomputation, in every how many layers, (s, 4).
        layers: number of layers of each type, in the order of `spaces`, (n, k).
        bounds: seconds that no assignment of the shard and the layers undercuts, (s, n).
    """

    tensor_parallel_size: int
    data_parallel_size: int
    counts: Sequence[int]
    shards: Integers
    layers: Integers
    bounds: Floats
    zero_stages: tuple[int, ...]


def choose_mixed(spaces: Sequence[Space], top: int) -> MixedChoice:
    """The `top` fastest assignments of one job to all devices of the spaces, which share model, precision and batch.

    Raises:
        ConfigError: there are too many types for that.
        InfeasiblePlan: no assignment is legal, or none fits.
    """
    require_few_types([space.setting.cluster.name for space in spaces])
    start = time.perf_counter()
    search = _MixedSearch(spaces, top)
    # The most promising sizes come first: good plans found early let the bounds rule out most of what follows.
    all_sizes = sorted(search.all_sizes(), key=lambda sizes: float(sizes.bounds.min()))
    num_orders = factorial(len(spaces))
    num_strategies = sum(sizes.bounds.size * len(sizes.zero_stages) for sizes in all_sizes) * num_orders
    search.rank_all(all_sizes)
    none_likely = not search.best and any(space.asks_likely for space in spaces)
    if none_likely:
        search = search.on_paper(top)
        search.rank_all(all_sizes)
    if not search.best:
        raise _empty_error(search.spaces, num_strategies, search.smallest_shortfall)
    crowded = search.on_paper(1, search.best[0].step_seconds)
    if any(space.headroom_bytes for space in search.spaces):
        crowded.rank_all(all_sizes)
    return MixedChoice(
        num_strategies,
        search.num_priced,
        best=tuple(search.best),
        crowded=next(iter(crowded.best), None),
        none_likely=none_likely,
        search_seconds=time.perf_counter() - start,
    )


def _shares(counts: Sequence[int], num_layers: int) -> Integers:
    """Every way to share the layers out to blocks of so many stages, at least one layer a stage, (n, k)."""
    spare = num_layers - sum(counts)
    if spare < 0:
        return np.zeros((0, len(counts)), dtype=np.int64)
    grid = np.meshgrid(*(np.arange(spare + 1) for _ in counts[1:]), indexing="ij")
    others = np.stack([axis.ravel() for axis in grid], axis=1)
    # What the other blocks leave of the spare layers goes to the first one, so that every row adds up to them.
    others = others[others.sum(axis=1) <= spare]
    return np.concatenate([spare - others.sum(axis=1, keepdims=True), others], axis=1) + np.array(counts)


class _MixedSearch:
    """The search of one job over these spaces: the best assignments so far, and the least memory that others lack.

    An order is one of the types along the pipeline.
    """

    def __init__(self, spaces: Sequence[Space], top: int, below: float = inf) -> None:
        """Keeps what takes less than `below` seconds."""
        self.spaces, self.top, self.below, self.num_priced = spaces, top, below, 0
        self.best: list[MixedStrategy] = []
        self.smallest_shortfall = inf
        # The tensor-parallel sizes that every type of devices allows.
        self._tensor_sizes = sorted(set.intersection(*(set(tensor_parallel_sizes(space)) for space in spaces)))
        self._tables = [
            price_shards(space.setting, self._tensor_sizes or [1], priced_batch_sizes(space)) for space in spaces
        ]

    @property
    def limit(self) -> float:
        """Seconds that a plan must beat to be among the best."""
        return self.best[-1].step_seconds if len(self.best) == self.top else self.below

    def on_paper(self, top: int, below: float = inf) -> _MixedSearch:
        """A search in which every plan fits whose predicted memory the devices have."""
        other = copy(self)
        other.spaces, other.top, other.below = [space.on_paper() for space in self.spaces], top, below
        other.best, other.num_priced, other.smallest_shortfall = [], 0, inf
        return other

    def rank_all(self, all_sizes: Sequence[_Sizes]) -> None:
        for sizes, order in product(all_sizes, permutations(range(len(self.spaces)))):
            self.rank(sizes, order)

    def all_sizes(self) -> Iterator[_Sizes]:
        first, shared = self.spaces[0], reduce(gcd, (space.world_size for space in self.spaces))
        for t in self._tensor_sizes:
            for d in divisors(shared // t) if shared % t == 0 else []:
                # All layers recompute alike, unless something else is pinned.
                alike = [
                    shard
                    for shard in shards_of(first, t, d)
                    if shard.recompute_every == 1 or "recompute_every" in first.pinned
                ]
                shards = np.array(alike, dtype=np.int64).reshape(-1, 4)
                counts = stage_counts(self.spaces, t, d)
                layers, stages = (
                    _shares(counts, first.setting.model.num_layers),
                    zero_stages(first, Sizes(t, 1, sum(counts), d)),
                )
                if len(shards) and len(layers) and stages:
                    yield _Sizes(t, d, counts, shards, layers, self._bounds(t, d, shards, layers), tuple(stages))

    def _bounds(self, t: int, d: int, shards: Integers, layers: Integers) -> Floats:
        """Seconds that no assignment of the shard and the layers undercuts, (s, n).

        They are those of the chain through the slowest stage: all its micro-batches, and one of them through every
        other stage, without the forward passes that a stage may run ahead. Embedding, head, transfers and the rest are
        left out.
        """
        counts = stage_counts(self.spaces, t, d)
        m = self.spaces[0].global_batch_size // (d * shards[:, :1])
        slowest: Floats = np.zeros((len(shards), len(layers)))
        forward, whole = np.zeros_like(slowest), np.zeros_like(slowest)
        for index, (table, count) in enumerate(zip(self._tables, counts, strict=True)):
            # Of layers that recompute only now and then, most take no longer than those that never do.
            recompute = np.where(shards[:, 3] > 1, NONE, shards[:, 2])
            layer = table.of_shards(np.asarray(t), shards[:, 0], shards[:, 1], recompute).layer
            of_forward = (layer.forward_seconds + layer.tensor_forward_seconds)[:, None]
            backward = layer.input_gradient_seconds + layer.weight_gradient_seconds + layer.tensor_backward_seconds
            fullest = -(-layers[:, index] // count)
            stage = (of_forward + backward[:, None]) * fullest
            whole += (of_forward + backward[:, None]) * layers[:, index]
            forward = np.where(stage > slowest, of_forward * fullest, forward)
            slowest = np.maximum(slowest, stage)
        # As in `costs.step.schedule`: all stages once, the slowest for the other micro-batches, less the
        # forward passes that the schedule may run while the first micro-batch is in later stages.
        chain = whole + (m - 1) * slowest - (np.minimum(m, sum(counts)) - 1) * forward
        return np.maximum(m * slowest, chain) * SLACK

    def rank(self, sizes: _Sizes, order: tuple[int, ...]) -> None:
        """Price the assignments that fit, in the order of their bounds, until no other can be among the best."""
        promising = np.nonzero(sizes.bounds < self.limit)
        if len(promising[0]) == 0:
            return
        lacks = self._shortfalls(sizes, order, promising)
        self.smallest_shortfall = min(self.smallest_shortfall, float(lacks.min()))
        stage, number = np.nonzero(lacks <= 0)
        shard, share = promising[0][number], promising[1][number]
        bounds = sizes.bounds[shard, share]
        ascending = np.argsort(bounds, kind="stable")
        for start in range(0, len(ascending), MOST_ROWS_AT_ONCE):
            part = ascending[start : start + MOST_ROWS_AT_ONCE]
            part = part[bounds[part] < self.limit]  # the limit falls as better plans are found
            if len(part) == 0:
                return
            plans = _plans(self.spaces[0], sizes, np.array(sizes.zero_stages)[stage[part]], shard[part])
            self._price(MixedRows(plans, order, sizes.counts, sizes.layers[share[part]]))

    def _shortfalls(self, sizes: _Sizes, order: tuple[int, ...], promising: tuple[Integers, ...]) -> Integers:
        """Bytes that the promising pairs of shard and layers lack, with those to be left free, by ZeRO stage, (z, n).

        The memory of a block depends on its own layers only, so that it is looked up in a table for each type.
        """
        counts = sizes.counts
        shard, share = promising
        worst: Integers = np.asarray(np.iinfo(np.int64).min)
        start = 0
        for index in order:
            layers = np.arange(counts[index], int(sizes.layers[:, index].max()) + 1)
            shards = np.arange(len(sizes.shards)).reshape(1, -1, 1)
            plans = _plans(self.spaces[0], sizes, np.array(sizes.zero_stages).reshape(-1, 1, 1), shards)
            stages = block_stages(index, start, counts[index], sum(counts), layers.reshape(1, 1, -1))
            work = self._tables[index].of(plans)
            space = self.spaces[index]
            table = block_shortfall(space.setting, plans, work, stages)[0] + space.headroom_bytes
            shape = (len(sizes.zero_stages), len(sizes.shards), len(layers))
            own = sizes.layers[share, index] - counts[index]
            worst = np.maximum(worst, np.broadcast_to(table, shape)[:, shard, own])
            start += counts[index]
        return worst

    def _price(self, rows: MixedRows) -> None:
        """Price the rows, and keep those that are among the best so far."""
        seconds = price_mixed(self.spaces, self._tables, rows).total_seconds
        self.num_priced += len(seconds)
        chosen = np.argsort(seconds, kind="stable")[: self.top]
        chosen = chosen[seconds[chosen] < self.limit]
        if len(chosen) == 0:
            return
        best = rows.rows(chosen)  # only these are priced by term and with their memory
        step, memory = price_mixed(self.spaces, self._tables, best), mixed_memory(self.spaces, self._tables, best)
        strategies = [_strategy(self.spaces, best, step, memory, row) for row in range(len(chosen))]
        self.best = sorted([*self.best, *strategies], key=lambda strategy: strategy.step_seconds)[: self.top]


def _plans(space: Space, sizes: _Sizes, zero_stage: Integers, shard: Integers) -> Plans:
    """The plans that all types have in common: 1F1B without chunks. The layers of the stages are stated elsewhere."""
    chosen = dict(zip(ShardChoice._fields, np.moveaxis(sizes.shards[shard], -1, 0), strict=True))
    d, same = sizes.data_parallel_size, np.ones_like(chosen["micro_batch_size"])
    # The layers of the first and the last stage are placeholders: prices take them from the groups of stages instead.
    columns = {
        **plain_columns(same.shape),
        **chosen,
        "sequence_parallel": chosen["sequence_parallel"].astype(bool),
        "tensor_parallel_size": same * sizes.tensor_parallel_size,
        "pipeline_parallel_size": same * sum(sizes.counts),
        "data_parallel_size": same * d,
        "num_micro_batches": space.global_batch_size // (d * chosen["micro_batch_size"]),
        "zero_stage": zero_stage,
        "first_stage_layers": same,
        "last_stage_layers": same,
    }
    return Plans(**columns)


def _strategy(
    spaces: Sequence[Space], rows: MixedRows, step: StepColumns, memory: MixedMemory, row: int
) -> MixedStrategy:
    odds = MemoryOdds.of(spaces[0].setting.implementation.name, sum(space.world_size for space in spaces))
    blocks = []
    for index in rows.order:
        base, fuller = divmod(int(rows.layers[row, index]), rows.counts[index])
        layers = (base + 1,) * fuller + (base,) * (rows.counts[index] - fuller)
        cluster = spaces[index].setting.cluster
        blocks.append(MixedBlock(cluster.name, cluster.device.name, spaces[index].world_size, layers))
    # The number of layers is a placeholder, since the list of all stages' layers replaces it below.
    (plan,) = strategies_of(rows.plans.rows(np.array([row])), 1, tensor_parallel_across_nodes=False)
    return MixedStrategy(
        strategy=plan.with_values(
            layers_per_stage=tuple(layers for block in blocks for layers in block.layers_per_stage)
        ),
        blocks=tuple(blocks),
        step_terms=row_of(step, row),
        step_seconds=float(step.total_seconds[row]),
        worst_stage=int(memory.worst_stage[row]),
        worst_stage_bytes=int(memory.worst_stage_bytes[row]),
        fit_likelihood=odds.likelihood(float(memory.fullest_share[row]), 1.0),
    )


def _empty_error(spaces: Sequence[Space], num_strategies: int, shortfall: float) -> InfeasiblePlan:
    shown = "+".join(f"{space.world_size} x {space.setting.cluster.device.name}" for space in spaces)
    if num_strategies == 0:
        given = ", ".join(f"{name}={value_text(value)}" for name, value in spaces[0].pinned.items())
        cause = f" with {given}" if given else ": no sizes divide all of them and leave no stage without a layer"
        problem = f"has no legal plan for one pipeline of {spaces[0].setting.model.name}{cause}"
        return InfeasiblePlan(
            "--mixed", shown, problem, "Choose numbers with more common divisors, or pin fewer knobs."
        )
    problem = (
        f"lacks memory: of {num_strategies} assignments the best is {shortfall / GIBIBYTE:.1f} GiB short per device"
    )
    free = ", or take a smaller --headroom" if any(space.headroom_bytes for space in spaces) else ""
    return InfeasiblePlan("--mixed", shown, problem, f"Use more devices{free}.")


@dataclass(frozen=True, slots=True)
class MixedRows:
    """Assignments with the same sizes and order of types, in columns, (n,).

    Attributes:
        plans: what all types have in common.
        order: index of the type of each block of stages, first to last.
        counts: number of stages of each type's block, by the type's index.
        layers: number of layers of each type, by the type's index, (n, k).
    """

    plans: Plans
    order: tuple[int, ...]
    counts: Sequence[int]
    layers: Integers

    def rows(self, selection: Integers) -> MixedRows:
        return replace(self, plans=self.plans.rows(selection), layers=self.layers[selection])


def stage_counts(spaces: Sequence[Space], tensor_parallel_size: int, data_parallel_size: int) -> list[int]:
    """The number of stages of each type's block, which uses all devices of that type."""
    return [space.world_size // (tensor_parallel_size * data_parallel_size) for space in spaces]


def price_mixed(spaces: Sequence[Space], tables: Sequence[ShardWork], rows: MixedRows) -> StepColumns:
    """Seconds of a step of every assignment, by term."""
    works = [table.of(rows.plans) for table in tables]
    types = [TypeOfDevices(space.setting, space.world_size) for space in spaces]
    return mixed_step(types, rows.plans, works, _stages(rows))


def _stages(rows: MixedRows) -> list[StagesOnType]:
    """The whole pipeline in groups of equal stages, first to last."""
    groups: list[StagesOnType] = []
    start = 0
    for index in rows.order:
        groups += block_stages(index, start, rows.counts[index], sum(rows.counts), rows.layers[:, index])
        start += rows.counts[index]
    return groups


def block_stages(index: int, start: int, count: int, num_stages: int, layers: Integers) -> list[StagesOnType]:
    """One type's block in groups: its first stage, those with one layer more, and those with one less.

    The last stage of the whole pipeline is a group of its own, since it holds the head.

    Args:
        layers: of the whole block, in columns of any shape.
    """
    base, fuller_stages = layers // count, layers % count
    ends = start + count == num_stages
    # The block's first stage and the pipeline's last are groups of their own; these are the stages between them.
    inner = count - 1 - (1 if ends and count > 1 else 0)
    # The block's first stage is the first that takes a layer more, so that one fewer is left for those between.
    fuller = np.clip(fuller_stages - 1, 0, inner)
    groups = [
        _single_stage(index, start, base + (fuller_stages > 0), start > 0, is_last=ends and count == 1),
        _equal_stages(index, start + 1, fuller, base + 1),
        _equal_stages(index, start + 1 + fuller, inner - fuller, base),
    ]
    if ends and count > 1:
        groups.append(_single_stage(index, num_stages - 1, base, False, is_last=True))
    return [stages for stages in groups if np.any(stages.group.count > 0)]


def _single_stage(index: int, start: int, layers: Integers, heads_block: bool, *, is_last: bool) -> StagesOnType:
    same, none = np.ones_like(layers), np.zeros(layers.shape, dtype=bool)
    group = StageGroup(same, same * start, layers, none | (start == 0), none | is_last)
    return StagesOnType(index, group, heads_block)


def _equal_stages(index: int, start: Integers | int, count: Integers, layers: Integers) -> StagesOnType:
    none = np.zeros(layers.shape, dtype=bool)
    return StagesOnType(index, StageGroup(count, np.zeros_like(layers) + start, layers, none, none), False)


class MixedMemory(NamedTuple):
    """Memory of assignments, in columns.

    Attributes:
        worst_stage: the one that leaves the least of its device's memory, and the bytes that it needs.
        fullest_share: the largest part of its device's memory that a stage takes.
    """

    worst_stage: Integers
    worst_stage_bytes: Integers
    fullest_share: Floats


def mixed_memory(spaces: Sequence[Space], tables: Sequence[ShardWork], rows: MixedRows) -> MixedMemory:
    plans, stages = rows.plans, _stages(rows)
    of_types = [
        block_shortfall(space.setting, plans, table.of(plans), [each for each in stages if each.type_index == index])
        for index, (space, table) in enumerate(zip(spaces, tables, strict=True))
    ]
    capacities = [space.setting.cluster.device.memory_bytes for space in spaces]
    shares = [(lacking + memory) / memory for (lacking, *_), memory in zip(of_types, capacities, strict=True)]
    shortfall, worst, needed = of_types[0]
    for other in of_types[1:]:
        fuller = other[0] > shortfall
        shortfall, worst, needed = (
            np.where(fuller, theirs, ours) for theirs, ours in zip(other, (shortfall, worst, needed), strict=True)
        )
    return MixedMemory(worst, needed, np.maximum.reduce(shares))
