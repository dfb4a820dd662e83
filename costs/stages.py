"""Pipeline stages that do the same work, in groups: each group is priced once, however many stages it has."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import numpy as np

from costs.setting import Booleans, InColumns, Integers, Plans, Size


@dataclass(frozen=True, slots=True)
class StageGroup(InColumns):
    """Consecutive equal stages, in columns, (n,). An empty group has count 0.

    Attributes:
        count: how many stages.
        start: index of the first of them.
        layers: transformer layers of each.
        is_first: it is the stage that embeds tokens (then count is 1).
        is_last: it is the stage that holds the output head (then count is 1).
    """

    count: Integers
    start: Integers
    layers: Integers
    is_first: Booleans
    is_last: Booleans


def recomputed_layers(layers: Size, num_chunks: Size, every: Size) -> Size:
    """Count the layers of a stage that recompute something: the first of each chunk and every n-th after it.

    Which chunks have a layer more does not matter to that (`conf.plan.chunks.chunk_layers`).
    """
    each, more = layers // num_chunks, layers % num_chunks
    # Of n layers in a chunk n / every recompute, rounded up; `more` of the chunks have a layer more.
    return more * -(-(each + 1) // every) + (num_chunks - more) * -(-each // every)


def spread_stages(plans: Plans, num_layers: int) -> list[StageGroup]:
    """First stage, inner stages with one layer more, other inner stages, last stage, for any number of plans.

    These are at most four groups; a group that is empty in all plans is left out.
    """
    p, first, last = plans.pipeline_parallel_size, plans.first_stage_layers, plans.last_stage_layers
    inner = np.maximum(p - 2, 0)
    rest = np.where(p > 2, num_layers - first - last, 0)
    # Without inner stages the divisor would be 0; both groups are empty then, and what is in them is not read.
    base, more = rest // np.maximum(inner, 1), rest % np.maximum(inner, 1)
    one, none, several = np.ones_like(p), np.zeros(p.shape, dtype=bool), p > 1
    groups = [
        StageGroup(one, np.zeros_like(p), first, ~none, ~several),
        StageGroup(more, one, base + 1, none, none),
        StageGroup(inner - more, 1 + more, base, none, none),
        StageGroup(several.astype(np.int64), p - 1, last, none, several),
    ]
    return [group for group in groups if np.any(group.count > 0)]


def listed_stages(layers_per_stage: tuple[int, ...]) -> list[StageGroup]:
    """Groups of one plan whose layers are listed, first stage to last; n is 1."""
    return _block(layers_per_stage, 0, len(layers_per_stage))


def listed_blocks(layers_per_stage: tuple[int, ...], stages_per_block: tuple[int, ...]) -> list[list[StageGroup]]:
    """List the groups as `listed_stages` does, those of each block of consecutive stages in a list of their own.

    A block's first stage is a group of its own, since its input comes over another link.
    """
    ends = [0, *accumulate(stages_per_block)]
    return [_block(layers_per_stage, start, end) for start, end in pairwise(ends)]


def _block(layers_per_stage: tuple[int, ...], start: int, end: int) -> list[StageGroup]:
    last = len(layers_per_stage) - 1
    # Equal neighbours share a group; the number sets those apart that are alone because of their place: the ends of the
    # pipeline also hold the embedding and the head.
    kinds = [(layers_per_stage[stage], stage if stage in (start, last) else -1) for stage in range(start, end)]
    groups = []
    for (layers, _), run in groupby(kinds):
        count = len(list(run))
        is_first, is_last = np.array([start == 0]), np.array([start == last])
        groups.append(StageGroup(np.array([count]), np.array([start]), np.array([layers]), is_first, is_last))
        start += count
    return groups


def each_stage(groups: list[StageGroup]) -> StageGroup:
    """The stages of one plan, which are counted in its groups, listed first to last in columns of p entries."""
    counts = [int(group.count[0]) for group in groups]
    layers, is_first, is_last = (
        np.repeat([getattr(group, name)[0] for group in groups], counts) for name in ("layers", "is_first", "is_last")
    )
    return StageGroup(np.ones_like(layers), np.arange(len(layers)), layers, is_first, is_last)
