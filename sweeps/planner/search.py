"""Search one space whole: every legal plan, those that fit, and the fastest of them.

On one number of one cluster's devices every objective (time, money, energy, device-hours) grows with the step's time,
and every limit is a limit of it; so the step's time is all that is ranked here. `sweeps.planner.choice` weighs several
numbers and clusters against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

import numpy as np

from sweeps.planner.blocks import PlanGrid, blocks
from sweeps.planner.shard_work import ShardTables
from sweeps.planner.space import Space, priced_batch_sizes, tensor_parallel_sizes
from sweeps.planner.tally import Found, Tally
from train_core.costs.price import peak_bytes, price_step
from train_core.costs.setting import Booleans

ALL = slice(None)
NEVER_FITS = np.iinfo(np.int64).max
MOST_PLANS_AT_ONCE = 40_000  # so that the columns of one part stay in the processor's cache


def search_space(space: Space, top: int, longest_step_seconds: float = inf) -> Found:
    """The `top` fastest plans of a space, and how many there are."""
    tables, tally = tables_of(space), Tally(top, longest_step_seconds)
    take_in(blocks(space), space.room_bytes, tables, tally)
    return tally.result()


def take_in(found: Iterable[PlanGrid], capacity: int, tables: ShardTables, tally: Tally) -> None:
    """Price the blocks and put them into the tally.

    Args:
        capacity: bytes that a plan may take of a device's memory.
    """
    for block in _parts(found):
        table = tables.of(block.sizes.context, block.sizes.expert)
        # Memory is cheaper to price than time and rules many plans out, so it comes first.
        peak = peak_bytes(block.setting, block.plans, table.of(block.plans))
        peak = np.where(block.legal, peak, NEVER_FITS)
        tally.count(block, int(peak.min()), int(np.count_nonzero(peak <= capacity)))
        for kept, fits in _fitting_blocks(block, peak <= capacity):
            prices = price_step(block.setting, kept.plans, table.of(kept.plans))
            tally.rank(kept, np.where(fits, prices.total_seconds, inf))


def tables_of(space: Space) -> ShardTables:
    return ShardTables(space.setting, tensor_parallel_sizes(space), priced_batch_sizes(space))


def _parts(found: Iterable[PlanGrid]) -> Iterator[PlanGrid]:
    """The blocks; those with too many plans are cut along their shards."""
    for block in found:
        num_zero_stages, num_shards, num_layouts = block.shape
        step = max(1, MOST_PLANS_AT_ONCE // (num_layouts * num_zero_stages))
        for start in range(0, num_shards, step):
            yield block.part(ALL, slice(start, start + step), ALL) if num_shards > step else block


def _fitting_blocks(block: PlanGrid, fits: Booleans) -> Iterator[tuple[PlanGrid, Booleans]]:
    """Smaller blocks of the shards and layouts for which some plan fits, each with a mask of the plans that do.

    ZeRO 0 and 1 add no collectives to a single micro-batch, while 2 and 3 each add their own. Grouped like this, the
    pipeline, which is the costly part, is computed once for each kind instead of once for each ZeRO stage.
    """
    stages = block.plans.zero_stage.ravel()
    for kind in (stages <= 1, stages == 2, stages == 3):
        chosen = np.flatnonzero(kind)
        of_kind = fits[chosen]
        if of_kind.any():
            shards, layouts = np.flatnonzero(of_kind.any(axis=(0, 2))), np.flatnonzero(of_kind.any(axis=(0, 1)))
            yield block.part(chosen, shards, layouts), of_kind[:, shards][:, :, layouts]
