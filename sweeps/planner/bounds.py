"""Seconds of a step that no plan of a family undercuts: a bound that tells which families need not be priced.

It is made of the layers and the head alone, each as fast as any recomputation and sequence parallelism makes it, and of
the smallest bubble that any schedule leaves. With w seconds for a micro-batch on all p stages together, whose slowest
takes at least w / p, and m micro-batches, `train_core.costs.step.schedule` gives at least w / p (m + k (p - 1)):

    interleaved    (w - slowest) / v + m slowest    k = 1 / v
    1F1B           w + (m - 1) slowest - (min(m, p) - 1) slowest / 2, the least of its two chains    k = 1 / 2
    zero-bubble    the stages' waits, each a share of what the stage takes, + m slowest    k = the least such share

Embedding, transfers, reductions and the update come on top, and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from conf.knobs import RECOMPUTES
from sweeps.planner.shard_work import ShardTables
from sweeps.planner.space import Sizes, Space, micro_batch_sizes, recomputations
from train_core.costs.layer.shard import NONE
from train_core.costs.setting import Floats, Integers

SLACK = 1 - 1e-9  # a bound is lowered by this factor, so that rounding never rules out one of the best
LEAST_BUBBLE_OF_1F1B = 0.5


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """What a micro-batch takes at least on all stages together, in columns by its size, (b,).

    Attributes:
        seconds: of the layers and the head.
        waiting: share of a stage's seconds that zero-bubble schedules leave as a wait.
    """

    sizes: Integers
    seconds: Floats
    waiting: Floats


@dataclass
class Bounds:
    """Bounds of the families of spaces that share model, cluster, batch and pins."""

    space: Space
    tables: ShardTables
    _known: dict[tuple[int, int, int], MicroBatches] = field(default_factory=dict)

    def of(self, space: Space, sizes: Sizes) -> tuple[Integers, Floats]:
        """The micro-batches of a family, and for each the seconds that no plan with it undercuts, both (b,)."""
        known, p = self._micro_batches(sizes), sizes.pipeline
        chosen = np.array(micro_batch_sizes(space, sizes.data), dtype=np.int64)
        index = np.searchsorted(known.sizes, chosen)
        m = space.global_batch_size // (sizes.data * chosen)
        chunks = max(1, most_chunks(space, p))
        bubble = np.minimum(min(LEAST_BUBBLE_OF_1F1B, 1 / chunks), known.waiting[index])
        return chosen, known.seconds[index] / p * (m + bubble * (p - 1)) * SLACK

    def _micro_batches(self, sizes: Sizes) -> MicroBatches:
        key = (sizes.tensor, sizes.context, sizes.expert)
        if key not in self._known:
            self._known[key] = self._priced(*key)
        return self._known[key]

    def _priced(self, t: int, context: int, expert: int) -> MicroBatches:
        table = self.tables.of(context, expert)
        b = table.micro_batch_sizes
        sequence_parallel = np.array([0, 1] if t > 1 else [0]).reshape(-1, 1, 1)
        recompute = np.array(_cheapest_recomputations(self.space)).reshape(1, -1, 1)
        work = table.of_shards(np.asarray(t), b, sequence_parallel, recompute)
        layer = work.layer
        forward = layer.forward_seconds + layer.tensor_forward_seconds
        to_input = layer.input_gradient_seconds + layer.tensor_backward_seconds
        of_layer = forward + to_input + layer.weight_gradient_seconds
        head_waits = work.head_forward_seconds + work.head_tensor_seconds + work.head_input_gradient_seconds
        of_head = head_waits + work.head_weight_gradient_seconds
        waits = np.minimum(
            (forward + to_input - layer.weight_gradient_seconds) / of_layer,
            (head_waits - work.head_weight_gradient_seconds) / of_head,
        )
        seconds = self.space.setting.model.num_layers * of_layer + of_head
        return MicroBatches(b, seconds.min(axis=(0, 1)), np.maximum(waits, 0.0).min(axis=(0, 1)))


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
