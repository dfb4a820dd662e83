"""Search many spaces at once for their best families, without pricing those that cannot be among them.

Families are taken in the order of their bounds, and within a family only the plans whose own
bound is still below the last of the best. What comes out is what pricing everything gives, which tests do.

A bound is a time that no plan of a family can beat. It is made of the layers and the head alone, each as fast as any
recomputation and sequence parallelism makes it, and of the smallest bubble that any schedule leaves. With w seconds for
a micro-batch on all p stages together and s on the slowest, m micro-batches and at most v chunks,
`train_core.costs.step.schedule` gives at least

    interleaved    (w - s) / v + m s, with fewer micro-batches than stages w + (m - 1) s / v
    1F1B           w + (m - 1) s - (min(m, p) - 1) s / 2, hence the half: the longer of its two chains is no shorter
                   than their mean
    zero-bubble    k (w - s) + m s, where every stage waits for at least the share k of what it takes

All grow with w and with s. The slowest of the stages takes at least w / p, and has at least ceil(layers / p) layers.

Embedding, transfers, reductions and the update come on top, and are left out.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from math import inf

import numpy as np

from conf.plan.knobs import RECOMPUTES
from sweeps.planner.choosing.objectives import Objective, objective_value
from sweeps.planner.plans.blocks import PlanGrid, blocks_of, families
from sweeps.planner.plans.search import Found, Tally, take_in
from sweeps.planner.plans.shard_work import ShardTables
from sweeps.planner.plans.space import (
    Sizes,
    Space,
    micro_batch_sizes,
    priced_batch_sizes,
    recomputations,
    tensor_parallel_sizes,
)
from train_core.costs.counts.parameters import num_parameters
from train_core.costs.layer.shard import NONE
from train_core.costs.setting import Floats, Integers, Plans
from train_core.costs.step.schedule import ONE_F_ONE_B, ZERO_BUBBLE

LIKELY_FOR_EACH = 2
"""Families that are likely to fit and are taken first, for each of the best that are asked for."""
WHOLE_BYTES_PER_PARAMETER, SHARED_BYTES_PER_PARAMETER, LIKELY_SHARE = 6, 12, 0.75
"""Mixed precision under ZeRO-1, with room for activations: they decide the order of families and nothing else."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """A family with its bounds.

    Attributes:
        number: of its space.
        micro_batch_sizes: those that it may have, (b,).
        values: what the objective says at best of plans with each of them, (b,).
    """

    number: int
    sizes: Sizes
    micro_batch_sizes: Integers
    values: Floats

    @property
    def least(self) -> float:
        return float(self.values.min())


class Prospects:
    """Families of many spaces with their bounds."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self.spaces = spaces
        self._tables = _shared_tables(spaces)
        self._bounds: dict[str, Bounds] = {}

    def search(
        self, numbers: Sequence[int], objective: Objective, top: int, longest_step_seconds: Sequence[float]
    ) -> tuple[list[Found], int]:
        """Return what was found in each of the spaces of these numbers, and how many of their families were left out.

        The `top` best families of all and the `top` best plans of all are among what was found.
        """
        prospects = self._in_order(numbers, objective, top)
        tallies = {number: Tally(top, longest_step_seconds[number]) for number in numbers}
        best: list[float] = []
        taken = 0
        for prospect in prospects:
            limit = best[top - 1] if len(best) >= top else inf
            if prospect.least >= limit:
                continue
            taken += 1
            tally = tallies[prospect.number]
            self._take_in(prospect, objective, limit, tally)
            if prospect.sizes in tally.families:
                seconds = tally.families[prospect.sizes][0]
                insort(best, objective_value(objective, self.spaces[prospect.number], seconds))
        return [tally.result() for tally in tallies.values()], len(prospects) - taken

    def _in_order(self, numbers: Sequence[int], objective: Objective, top: int) -> list[Prospect]:
        """All families: first a few that are likely to fit, so that there soon is a limit, then by their bounds."""
        by_bound = sorted(self._prospects(numbers, objective), key=lambda prospect: prospect.least)
        likely = list(islice(filter(self._is_likely_to_fit, by_bound), LIKELY_FOR_EACH * top))
        chosen = set(map(id, likely))
        return [*likely, *(prospect for prospect in by_bound if id(prospect) not in chosen)]

    def _is_likely_to_fit(self, prospect: Prospect) -> bool:
        """True if weights, gradients and an optimizer state that replicas share out take a part of the memory."""
        space, sizes = self.spaces[prospect.number], prospect.sizes
        held = num_parameters(space.setting.model) / (sizes.tensor * sizes.pipeline * sizes.expert)
        needed = held * (WHOLE_BYTES_PER_PARAMETER + SHARED_BYTES_PER_PARAMETER / sizes.num_replicas)
        return needed < LIKELY_SHARE * space.room_bytes

    def _take_in(self, prospect: Prospect, objective: Objective, limit: float, tally: Tally) -> None:
        """Price the plans of a family that may still be among the best."""
        space = self.spaces[prospect.number]
        # A micro-batch whose bound reaches the limit has no plan below it, so that its columns are not built.
        wanted = set(prospect.micro_batch_sizes[prospect.values < limit].tolist())
        found = blocks_of(space, prospect.sizes, wanted)
        if limit < inf:
            found = self._promising_blocks(found, space, limit / objective_value(objective, space, 1.0))
        take_in(found, space.room_bytes, self._tables[_kind(space)], tally)

    def _promising_blocks(self, found: Iterable[PlanGrid], space: Space, longest: float) -> Iterator[PlanGrid]:
        """The blocks without what cannot fit, and without shards and layouts whose bounds are longer than `longest`."""
        bounds = self._bounds[_kind(space)]
        for block in found:
            # The block is cut to shards, layouts and ZeRO stages with some such plan; it remains a grid of all their
            # combinations.
            kept = block.legal & (bounds.of_plans(block.sizes, block.plans) < longest)
            shards, layouts = np.flatnonzero(kept.any(axis=(0, 2))), np.flatnonzero(kept.any(axis=(0, 1)))
            stages = np.flatnonzero(bounds.bytes_of_stages(block) <= space.room_bytes)
            if shards.size and stages.size:
                yield replace(block.part(stages, shards, layouts), legal=kept[:, shards][:, :, layouts])

    def _prospects(self, numbers: Sequence[int], objective: Objective) -> Iterator[Prospect]:
        for number in numbers:
            space = self.spaces[number]
            own = self._bounds.setdefault(_kind(space), Bounds(space, self._tables[_kind(space)]))
            factor = objective_value(objective, space, 1.0)  # every objective is proportional to the step's seconds
            for sizes in families(space):
                micro_batches, seconds = own.of(space, sizes)
                if len(micro_batches):
                    yield Prospect(number, sizes, micro_batches, np.asarray(seconds * factor))


def _kind(space: Space) -> str:
    """Spaces of one cluster differ in their number of devices alone, and share what a shard takes."""
    return f"{space.setting.cluster.name} {space.global_batch_size}"


def _shared_tables(spaces: Sequence[Space]) -> dict[str, ShardTables]:
    of_kind: dict[str, list[Space]] = {}
    for space in spaces:
        of_kind.setdefault(_kind(space), []).append(space)
    return {
        kind: ShardTables(
            group[0].setting,
            sorted({size for space in group for size in tensor_parallel_sizes(space)}),
            priced_batch_sizes(group[0]),
        )
        for kind, group in of_kind.items()
    }


SLACK = 1 - 1e-9  # a bound is lowered by this factor, so that rounding never rules out one of the best


@dataclass(frozen=True, slots=True)
class Shards:
    """The cost of layers and head per micro-batch, by sequence parallelism, recomputation and size, (2, r, b).

    Attributes:
        sizes: of the micro-batches, ascending, (b,).
        waiting: share of a stage's seconds that zero-bubble schedules leave as a wait.
        layer_parameters: of a rank, in the smaller kind of layers where there are two.
    """

    sizes: Integers
    layer_seconds: Floats
    head_seconds: Floats
    waiting: Floats
    layer_parameters: int


@dataclass
class Bounds:
    """Bounds of the families of spaces that share model, cluster, batch and pins."""

    space: Space
    tables: ShardTables
    _known: dict[tuple[int, int, int], Shards] = field(default_factory=dict)

    def of(self, space: Space, sizes: Sizes) -> tuple[Integers, Floats]:
        """The micro-batches of a family, and for each the seconds that no plan with it undercuts, both (b,)."""
        shards, p = self._shards(sizes), sizes.pipeline
        chosen = np.array(micro_batch_sizes(space, sizes.data), dtype=np.int64)
        splits = np.array([0, 1] if sizes.tensor > 1 else [0])
        recomputed = np.array(_cheapest_recomputations(self.space))
        at = np.ix_(splits, recomputed, np.searchsorted(shards.sizes, chosen))
        layer, head = shards.layer_seconds[at].min(axis=(0, 1)), shards.head_seconds[at].min(axis=(0, 1))
        layers = space.setting.model.num_layers
        # w, the seconds of one micro-batch on all stages together: embedding and transfers are left out, so that it
        # errs low.
        whole, fullest = layers * layer + head, _fullest_stage(layers, p)
        # s: the slowest of p stages takes no less than their mean, nor than the layers of the fullest.
        slowest = np.maximum(whole / p, fullest * layer)
        m = space.global_batch_size // (sizes.data * chosen)
        chunks = max(1, most_chunks(space, p))
        found = (
            _one_f_one_b(whole, slowest, p, m),
            _interleaved_seconds(whole, slowest, p, m, chunks),
            _zero_bubble(whole, slowest, m, shards.waiting[at].min(axis=(0, 1))),
        )
        # A family may have plans of every schedule, so that only the least of their bounds is a bound of it.
        return chosen, np.minimum.reduce(found) * SLACK

    def of_plans(self, sizes: Sizes, plans: Plans) -> Floats:
        """The seconds that plans of a family do not undercut, in the shape in which they are crossed."""
        shards, p, m = self._shards(sizes), sizes.pipeline, plans.num_micro_batches
        # Where some layers recompute nothing, all are taken to be as fast as those.
        recompute = np.where(plans.recompute_every > 1, NONE, plans.recompute)
        at = (plans.sequence_parallel.astype(int), recompute, np.searchsorted(shards.sizes, plans.micro_batch_size))
        layer, head, layers = shards.layer_seconds[at], shards.head_seconds[at], self.space.setting.model.num_layers
        whole, first, last = layers * layer + head, plans.first_stage_layers, plans.last_stage_layers
        fullest = np.maximum(first, _fullest_stage(layers, p))
        slowest = np.maximum(np.maximum(whole / p, fullest * layer), last * layer + head)
        others = np.where(
            plans.schedule == ZERO_BUBBLE,
            _zero_bubble(whole, slowest, m, shards.waiting[at]),
            _interleaved_seconds(whole, slowest, p, m, plans.virtual_pipeline_size),
        )
        least = np.where(plans.schedule == ONE_F_ONE_B, _one_f_one_b(whole, slowest, p, m), others)
        return np.asarray(least * SLACK)

    def bytes_of_stages(self, block: PlanGrid) -> Integers:
        """Bytes that no plan of a block undercuts, by its ZeRO stage, (z,): weights and gradients of layers.

        The fullest pipeline stage holds them all, but for those that ZeRO shares out: from stage 2 on the gradients,
        from stage 3 on the weights.
        """
        setting, sizes, stages = block.setting, block.sizes, block.plans.zero_stage.ravel()
        of_layer = self._shards(sizes).layer_parameters
        held = _fullest_stage(setting.model.num_layers, sizes.pipeline) * of_layer
        return held * ((stages < 3) * setting.dtype_bytes + (stages < 2) * setting.gradient_bytes)

    def _shards(self, sizes: Sizes) -> Shards:
        key = (sizes.tensor, sizes.context, sizes.expert)
        if key not in self._known:
            self._known[key] = self._price(*key)
        return self._known[key]

    def _price(self, t: int, context: int, expert: int) -> Shards:
        table = self.tables.of(context, expert)
        splits, recomputed = np.arange(2).reshape(-1, 1, 1), np.arange(len(RECOMPUTES)).reshape(1, -1, 1)
        work = table.of_shards(np.asarray(t), table.micro_batch_sizes, splits, recomputed)
        layer = work.layer
        forward = layer.forward_seconds + layer.tensor_forward_seconds
        to_input = layer.input_gradient_seconds + layer.tensor_backward_seconds
        of_layer = forward + to_input + layer.weight_gradient_seconds
        head_waits = work.head_forward_seconds + work.head_tensor_seconds + work.head_input_gradient_seconds
        of_head = head_waits + work.head_weight_gradient_seconds
        # Under ZB-H1 a stage waits F + B - W of its F + B + W. It has layers and perhaps the head, so that its share is
        # no smaller than the smaller one of theirs.
        waits = np.minimum(
            (forward + to_input - layer.weight_gradient_seconds) / of_layer,
            (head_waits - work.head_weight_gradient_seconds) / of_head,
        )
        parameters = int(np.minimum(work.layer_parameters, work.dense_layer_parameters).min())
        return Shards(table.micro_batch_sizes, of_layer, of_head, np.maximum(waits, 0.0), parameters)


def _one_f_one_b(whole: Floats, slowest: Floats, num_stages: int, m: Integers) -> Floats:
    # One end of the chain lasts at least as long as the later stages take, which with the earlier ones is w; the other
    # as long as the longer of its forward and its backward passes, which are half of (min(m, p) - 1) s or more.
    return whole + (m - 1) * slowest - (np.minimum(m, num_stages) - 1) * slowest / 2


def _interleaved_seconds(
    whole: Floats, slowest: Floats, num_stages: int, m: Integers, num_chunks: Integers | int
) -> Floats:
    few = whole + (m - 1) * slowest / num_chunks
    least: Floats = np.where(m < num_stages, few, (whole - slowest) / num_chunks + m * slowest)
    return least


def _zero_bubble(whole: Floats, slowest: Floats, m: Integers, waiting: Floats) -> Floats:
    return waiting * (whole - slowest) + m * slowest


def _cheapest_recomputations(space: Space) -> list[int]:
    """Indices of what layers may recompute; where some layers of a stage recompute nothing, that is among them."""
    chosen = {recompute if every == 1 else NONE for recompute, every in recomputations(space)}
    return sorted(chosen) or list(range(len(RECOMPUTES)))


def most_chunks(space: Space, num_stages: int) -> int:
    """Chunks of a stage in the finest interleaving that the space may hold."""
    pinned = space.pinned.get("virtual_pipeline_size")
    return pinned if isinstance(pinned, int) else _fullest_stage(space.setting.model.num_layers, num_stages)


@lru_cache(maxsize=1024)
def _fullest_stage(num_layers: int, num_stages: int) -> int:
    return -(-num_layers // num_stages)
