"""Search one space whole: every legal plan, those that fit, and the fastest of them.

On one number of one cluster's devices every objective (time, money, energy, device-hours) grows with the step's time,
and every limit is a limit of it; so the step's time is all that is ranked here. `sweeps.planner.choosing.choice` weighs
several numbers and clusters against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from sweeps.planner.plans.blocks import PlanGrid, blocks
from sweeps.planner.plans.shard_work import ShardTables
from sweeps.planner.plans.space import Sizes, Space, priced_batch_sizes, tensor_parallel_sizes
from train_core.costs.price import peak_bytes, price_step
from train_core.costs.setting import Booleans, Floats, Integers, Plans, Setting

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
        # The part is the smallest grid with all plans of the kind that fit; the mask leaves out its others.
        of_kind = fits[chosen]
        if of_kind.any():
            shards, layouts = np.flatnonzero(of_kind.any(axis=(0, 2))), np.flatnonzero(of_kind.any(axis=(0, 1)))
            yield block.part(chosen, shards, layouts), of_kind[:, shards][:, :, layouts]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Plans with their predicted steps, fastest first; equally fast ones are in the order of the space.

    Attributes:
        plans: in columns, (k,).
        step_seconds: (k,).
        settings: in which each is priced: where its optimizer states and its ranks are placed.
    """

    plans: Plans
    step_seconds: Floats
    settings: tuple[Setting, ...]

    def __len__(self) -> int:
        return len(self.settings)

    def first(self, number: int) -> Ranked:
        return Ranked(self.plans.rows(slice(0, number)), self.step_seconds[:number], self.settings[:number])


@dataclass(frozen=True, slots=True)
class Found:
    """The result of the search of one space.

    Attributes:
        num_strategies: number of legal plans.
        num_fitting: how many of them fit, with every stage on its device.
        num_feasible: how many of those are also fast enough.
        best: the fastest feasible plans. None if no plan is feasible.
        families: the fastest feasible plan of every family that has one, likewise.
        fastest_seconds: step of the fastest plan that fits, whether it keeps the limit or not; infinite if none fits.
        smallest_bytes: memory of the legal plan that needs least; 0 if there is no legal plan.
    """

    num_strategies: int
    num_fitting: int
    num_feasible: int
    best: Ranked | None
    families: Ranked | None
    fastest_seconds: float
    smallest_bytes: int

    @property
    def step_seconds(self) -> Floats:
        """Predicted seconds of the plans in `best`, (k,)."""
        return np.zeros(0) if self.best is None else self.best.step_seconds


class Tally:
    """The counts, and the best plans so far, while the blocks of a space go by."""

    def __init__(self, top: int, longest_step_seconds: float) -> None:
        self.top, self.longest_step_seconds = top, longest_step_seconds
        self.num_strategies = self.num_fitting = self.num_feasible = self.smallest_bytes = 0
        self.fastest_seconds = inf
        self.kept: list[tuple[Floats, Plans, Integers]] = []
        self.families: dict[Sizes, tuple[float, Plans, Setting]] = {}
        self.settings: list[Setting] = []
        self.worst_kept = inf

    def count(self, block: PlanGrid, smallest_bytes: int, num_fitting: int) -> None:
        self.num_strategies += block.num_strategies
        self.num_fitting += num_fitting
        self.smallest_bytes = min(self.smallest_bytes or smallest_bytes, smallest_bytes)

    def rank(self, block: PlanGrid, seconds: Floats) -> None:
        """Take in a block's plans. An infinite time marks a plan that does not fit."""
        # The largest finite number keeps infinite times out also where no limit is set.
        feasible = seconds <= min(self.longest_step_seconds, np.finfo(np.float64).max)
        self.num_feasible += int(np.count_nonzero(feasible))
        self.fastest_seconds = min(self.fastest_seconds, float(seconds.min()))
        self._rank_family(block, np.where(feasible, seconds, inf))
        (index,) = np.nonzero((feasible & (seconds < self.worst_kept)).ravel())
        if len(index) == 0:
            return
        # A stable sort keeps equally fast plans in the order of the space, where the plainer plan comes first.
        index = index[np.argsort(seconds.ravel()[index], kind="stable")[: self.top]]
        numbers = np.full(len(index), self._number_of(block.setting))
        self.kept = [self._best([*self.kept, (seconds.ravel()[index], block.rows(index), numbers)])]
        if len(self.kept[0][0]) == self.top:
            self.worst_kept = float(self.kept[0][0][-1])

    def _rank_family(self, block: PlanGrid, seconds: Floats) -> None:
        """Keep the block's best plan if its family has no better one yet."""
        index = int(seconds.argmin())
        least = float(seconds.ravel()[index])
        if least < self.families[block.sizes][0] if block.sizes in self.families else least < inf:
            self.families[block.sizes] = (least, block.rows(np.array([index])), block.setting)

    def _number_of(self, setting: Setting) -> int:
        """The number of a setting; blocks of one setting come with the same object."""
        if setting not in self.settings:
            self.settings.append(setting)
        return self.settings.index(setting)

    def _best(self, parts: list[tuple[Floats, Plans, Integers]]) -> tuple[Floats, Plans, Integers]:
        seconds, plans = np.concatenate([part[0] for part in parts]), concatenate_plans([part[1] for part in parts])
        order = np.argsort(seconds, kind="stable")[: self.top]
        return seconds[order], plans.rows(order), np.concatenate([part[2] for part in parts])[order]

    def _best_of_families(self) -> Ranked | None:
        ordered = sorted(self.families.values(), key=lambda leader: leader[0])
        if not ordered:
            return None
        seconds, plans, settings = zip(*ordered, strict=True)
        return Ranked(concatenate_plans(list(plans)), np.array(seconds), settings)

    def result(self) -> Found:
        best = None
        if self.kept:
            seconds, plans, numbers = self.kept[0]
            best = Ranked(plans, seconds, tuple(self.settings[number] for number in numbers.tolist()))
        return Found(
            num_strategies=self.num_strategies,
            num_fitting=self.num_fitting,
            num_feasible=self.num_feasible,
            best=best,
            families=self._best_of_families(),
            fastest_seconds=self.fastest_seconds,
            smallest_bytes=self.smallest_bytes,
        )


def concatenate_plans(parts: list[Plans]) -> Plans:
    """The rows of all parts, one after the other."""
    return Plans(*(np.concatenate([getattr(part, name) for part in parts]) for name in Plans.__slots__))
