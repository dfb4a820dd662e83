"""Times and bytes that no plan of a family undercuts: what is ruled out by them need not be priced.

A bound of time is made of the layers and the head alone, each as fast as any recomputation and sequence parallelism
of the family makes it (`of_plans` takes each plan's own), and of the smallest bubble that a schedule leaves. With w
seconds for a micro-batch on all p stages together and s on the slowest, m micro-batches and at most v chunks,
`costs.step.schedule` gives at least

    GPipe          (w - s) + m s, which is interleaving of one chunk
    interleaved    (w - s) / v + m s, with fewer micro-batches than stages w + (m - 1) s / v
    1F1B           w + (m - 1) s - (min(m, p) - 1) s / 2: the longer of its two chains is no shorter than their mean,
                   which halves the last term
    zero-bubble    k (w - s) + m s, where every stage waits for at least the share k of what it takes

All grow with w and with s. The slowest of the stages takes at least w / p, and has at least ceil(layers / p) layers.
Where the first layers have no experts, a layer is one with experts, and what the others take less is taken off.

Embedding, transfers, reductions and the update come on top, and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from conf.types.cluster_spec import ClusterSpec
from conf.types.recompute import RECOMPUTES
from costs.layer.layer_costs import LayerCosts
from costs.layer.shard import NONE
from costs.setting import Floats, Integers
from costs.step.schedule import ONE_F_ONE_B, ZERO_BUBBLE
from sweeps.planner.plans.blocks import PlanGrid
from sweeps.planner.plans.shard_work import SHARD_SIZES, ShardWork, price_all_shards
from sweeps.planner.plans.space import Family, Space, micro_batch_sizes, recomputations

SLACK = 1 - 1e-9  # a bound is lowered by this factor, so that rounding never rules out one of the best


class Shards(NamedTuple):
    """The cost of layers and head per micro-batch, in columns by sizes, sequence parallelism and recomputation.

    Attributes:
        saved_seconds: by which a layer without experts is faster than `layer_seconds`; 0 where it is not.
        waiting: share of a stage's seconds that zero-bubble schedules leave as a wait.
        layer_parameters: of a rank, in the smaller kind of layers where there are two.
    """

    layer_seconds: Floats
    head_seconds: Floats
    saved_seconds: Floats
    waiting: Floats
    layer_parameters: Integers

    def at(self, where: Any) -> Shards:
        return Shards._make(column[where] for column in self)


class Bounds:
    """Bounds of the families of spaces that share model, cluster, batch and pins."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self.spaces, self.space = spaces, spaces[0]

    @cached_property
    def table(self) -> ShardWork:
        """The work of all shards of these spaces, priced when it is first asked for: a space may have no plan."""
        return price_all_shards(self.spaces)

    @cached_property
    def with_fewest_ports(self) -> tuple[ClusterSpec, ShardWork] | None:
        """The cluster whose rings leave nodes by one port, and the work of all shards on it; None if of no space."""
        found = (space.with_fewest_ports for space in self.spaces)
        cluster = next((each for each in found if each is not None), None)
        if cluster is None:
            return None
        altered = [replace(space, setting=replace(space.setting, cluster=cluster)) for space in self.spaces]
        return cluster, price_all_shards(altered)

    def of(self, space: Space, family: Family) -> tuple[Integers, Floats]:
        """The micro-batches of a family, and for each the seconds that no plan with it undercuts, both (b,)."""
        sizes, all_micro_batches = family.sizes, self.table.micro_batch_sizes
        p = sizes.pipeline
        chosen = np.array(micro_batch_sizes(space, sizes.data), dtype=np.int64)
        splits = np.array([0, 1] if sizes.tensor > 1 else [0])
        # Where some layers of a stage recompute nothing, that is among what layers may recompute.
        cheapest = {recompute if every == 1 else NONE for recompute, every in recomputations(self.space)}
        recomputed = np.array(sorted(cheapest) or range(len(RECOMPUTES)))
        own = self._own_shards(family)
        shards = own.at(np.searchsorted(all_micro_batches, chosen))
        at = np.ix_(np.arange(len(chosen)), splits, recomputed)
        layer, head = shards.layer_seconds[at].min(axis=(1, 2)), shards.head_seconds[at].min(axis=(1, 2))
        layers, saved = space.setting.model.num_layers, self._num_dense * shards.saved_seconds.max(axis=(1, 2))
        # w, the seconds of one micro-batch on all stages together: embedding and transfers are left out, so that it
        # errs low.
        whole, fullest = layers * layer - saved + head, _fullest_stage(layers, p)
        # s: the slowest of p stages takes no less than their mean, nor than the layers of the fullest.
        slowest = np.maximum(whole / p, fullest * layer - saved)
        m = space.global_batch_size // (sizes.data * chosen)
        pinned = space.pinned.get("virtual_pipeline_size")  # else the finest interleaving
        chunks = max(1, pinned if isinstance(pinned, int) else _fullest_stage(layers, p))
        found = (
            _one_f_one_b(whole, slowest, p, m),
            _interleaved_seconds(whole, slowest, p, m, chunks),
            _zero_bubble(whole, slowest, m, shards.waiting.min(axis=(1, 2))),
        )
        # A family may have plans of every schedule, so that only the least of their bounds is a bound of it.
        return chosen, np.minimum.reduce(found) * SLACK

    def of_plans(self, block: PlanGrid) -> Floats:
        """The seconds that the plans of a block do not undercut, in the shape in which they are crossed."""
        plans, p, shards = block.plans, block.sizes.pipeline, self._shards
        m = plans.num_micro_batches
        # Where some layers recompute nothing, all are taken to be as fast as those.
        recompute = np.where(plans.recompute_every > 1, NONE, plans.recompute)
        sizes = self.table.places(*(getattr(plans, name) for name in SHARD_SIZES))
        at = (*sizes, plans.sequence_parallel.astype(int), recompute)
        layer, head, layers = shards.layer_seconds[at], shards.head_seconds[at], self.space.setting.model.num_layers
        first, last = plans.first_stage_layers, plans.last_stage_layers
        repeating = (*at[:-1], plans.recompute)
        saved_by_each = np.maximum(shards.saved_seconds[at], shards.saved_seconds[repeating])
        saved = np.minimum(first, self._num_dense) * saved_by_each
        whole = layers * layer - saved + head
        # The first stage has the layers without experts; the fullest of the others has no less than their mean.
        slowest = np.maximum(
            np.maximum(whole / p, first * layer - saved), last * layer + (head if p > 1 else head - saved)
        )
        slowest = np.maximum(slowest, -(-(layers - first) // max(p - 1, 1)) * layer)
        others = np.where(
            plans.schedule == ZERO_BUBBLE,
            _zero_bubble(whole, slowest, m, np.minimum(shards.waiting[at], shards.waiting[repeating])),
            _interleaved_seconds(whole, slowest, p, m, plans.virtual_pipeline_size),
        )
        least = np.where(plans.schedule == ONE_F_ONE_B, _one_f_one_b(whole, slowest, p, m), others)
        return np.asarray(least * SLACK)

    def bytes_by_zero_stage(self, block: PlanGrid) -> Integers:
        """Bytes that no plan of a block undercuts, by its ZeRO stage, (z,): weights and gradients of layers.

        The fullest pipeline stage holds them all, but for those that ZeRO shares out: from stage 2 on the gradients,
        from stage 3 on the weights.
        """
        setting, stages = block.setting, block.plans.zero_stage.ravel()
        of_layer = min(int(self._own_shards(family).layer_parameters.min()) for family, _ in block.families)
        held = _fullest_stage(setting.model.num_layers, block.sizes.pipeline) * of_layer
        return held * ((stages < 3) * setting.dtype_bytes + (stages < 2) * setting.gradient_bytes)

    @property
    def _num_dense(self) -> int:
        """The first layers, which have no experts, in a model whose others have some."""
        model = self.space.setting.model
        return 0 if model.experts is None else model.num_dense_layers

    def _own_shards(self, family: Family) -> Shards:
        """Those of the family, by micro-batch, sequence parallelism and recomputation, (b, 2, r)."""
        where = self.table.places(family.sizes.context, family.expert, family.sizes.tensor)
        return self._shards.at(where)

    @cached_property
    def _shards(self) -> Shards:
        """Those of all families, (c, e, t, b, 2, r)."""
        work = self.table.work
        if self.space.setting.offload_activations:
            # Without the copies, which make no plan faster; a layer that recomputes has fewer than one that keeps all.
            plain = [replace(each, setting=replace(each.setting, offload_activations=False)) for each in self.spaces]
            work = price_all_shards(plain).work
        of_layer, layer_waits = _layer_seconds(work.layer)
        of_dense, dense_waits = _layer_seconds(work.dense_layer)
        head_waits = work.head_forward_seconds + work.head_tensor_seconds + work.head_input_gradient_seconds
        of_head = head_waits + work.head_weight_gradient_seconds
        # Under ZB-H1 a stage waits F + B - W of its F + B + W. It has layers and perhaps the head, so that its share is
        # no smaller than the smallest one of theirs.
        waits = np.minimum(layer_waits, (head_waits - work.head_weight_gradient_seconds) / of_head)
        columns = Shards(
            of_layer,
            of_head,
            np.maximum(of_layer - of_dense, 0.0),
            np.maximum(np.minimum(waits, dense_waits), 0.0),
            np.minimum(work.layer_parameters, work.dense_layer_parameters),
        )
        return Shards._make(column.reshape(self.table.shape) for column in columns)


def _layer_seconds(layer: LayerCosts) -> tuple[Floats, Floats]:
    """The seconds of a layer for a micro-batch, and the share of them that zero-bubble schedules leave as a wait."""
    forward = layer.forward_seconds + layer.tensor_forward_seconds
    to_input = layer.input_gradient_seconds + layer.tensor_backward_seconds
    whole = forward + to_input + layer.weight_gradient_seconds
    return whole, (forward + to_input - layer.weight_gradient_seconds) / whole


def _one_f_one_b(whole: Floats, slowest: Floats, num_stages: int, m: Integers) -> Floats:
    # One end of the chain lasts at least as long as the later stages take, which with the earlier ones is w; the other
    # as long as the longer of its forward and its backward passes, which are half of (min(m, p) - 1) s or more.
    return whole + (m - 1) * slowest - (np.minimum(m, num_stages) - 1) * slowest / 2


def _interleaved_seconds(
    whole: Floats, slowest: Floats, num_stages: int, m: Integers, num_chunks: Integers | int
) -> Floats:
    few = whole + (m - 1) * slowest / num_chunks
    return np.where(m < num_stages, few, (whole - slowest) / num_chunks + m * slowest)


def _zero_bubble(whole: Floats, slowest: Floats, m: Integers, waiting: Floats) -> Floats:
    return waiting * (whole - slowest) + m * slowest


@lru_cache(maxsize=1024)
def _fullest_stage(num_layers: int, num_stages: int) -> int:
    return -(-num_layers // num_stages)
