"""Search one space whole: every legal plan, those that fit, and the fastest of them.

On one number of one cluster's devices every objective (time, money, energy, device-hours) grows with the step's time,
and every limit is a limit of it; so the step's time is all that is ranked here. `sweeps.planner.choosing.choice` weighs
several numbers and clusters against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from costs.price import first_stage_bytes, peak_bytes, price_step
from costs.setting import Booleans, Floats, Integers, Plans, Setting
from sweeps.planner.plans.blocks import PlanGrid, blocks
from sweeps.planner.plans.bounds import Bounds
from sweeps.planner.plans.plainness import handicap
from sweeps.planner.plans.shard_work import ShardWork
from sweeps.planner.plans.space import Family, Space

ALL = slice(None)
NEVER_FITS = np.iinfo(np.int64).max
REACH = 1.5  # families further behind are no rivals of the best, however wide the interval of their order is
MOST_PLANS_AT_ONCE = 160_000  # more at once leave the cache, fewer are outweighed by what every call of numpy costs
FIRST = 8  # plans of each family whose price with fewer ports is asked for first
LARGEST_KEPT_BYTES = 31 * 2**20  # glibc takes no larger array for what programs use again and again


def search_space(space: Space, top: int, longest_step_seconds: float = inf) -> Found:
    """The `top` best plans of a space by counted seconds, and how many there are."""
    tally = Tally(top, longest_step_seconds)
    memory_bytes = space.setting.cluster.device.memory_bytes
    take_in(blocks(space), memory_bytes, Bounds([space]), tally, headroom_bytes=space.headroom_bytes)
    return tally.result()


def take_in(found: Iterable[PlanGrid], capacity: int, bounds: Bounds, tally: Tally, *, headroom_bytes: int = 0) -> None:
    """Put the blocks into the tally; only plans that can be among the best are priced in full.

    Args:
        capacity: bytes that a plan may take of a device's memory.
        headroom_bytes: those of them that it has to leave free; what does not is looked at for `Found.crowded` alone.
    """
    # Once an array of this size was freed, glibc keeps freed memory of up to twice as much for the next arrays. It else
    # gives them back to the system after every block and asks for them anew, which took a fifth of a search's time.
    np.empty(LARGEST_KEPT_BYTES, dtype=np.uint8)
    for _, placed in groupby(found, key=lambda block: (block.sizes, block.setting.offload_optimizer)):
        alike = list(placed)
        whole, stages = _in_all_groups(alike)
        memories = [_memory(whole, shards, capacity, bounds.table, tally.smallest_bytes) for shards in _parts(whole)]
        for block, own in zip(alike, stages, strict=True):
            tally.num_strategies += block.num_strategies
            for memory in memories:
                _rank(block, memory._replace(peak=memory.peak[own]), capacity, headroom_bytes, bounds, tally)


def _in_all_groups(placed: Sequence[PlanGrid]) -> tuple[PlanGrid, list[slice]]:
    """The plans of all blocks with the groups of ZeRO side by side, and the ZeRO stages there of each block.

    The order of the ranks changes the time of plans and not their memory. It is legal for some expert-parallel sizes
    alone, and the plainer one, which comes first, for all.
    """
    first, groups = placed[0], {block.setting.zero_group_size: block for block in placed}
    stages = [block.plans.zero_stage for block in groups.values()]
    ends = [0, *accumulate(len(column) for column in stages)]
    own = {group: slice(*span) for group, span in zip(groups, pairwise(ends), strict=True)}
    sizes = [np.full_like(column, group or NEVER_FITS) for group, column in zip(groups, stages, strict=True)]
    setting = replace(first.setting, zero_group_size=np.concatenate(sizes)) if len(groups) > 1 else first.setting
    whole = replace(first, setting=setting, plans=replace(first.plans, zero_stage=np.concatenate(stages)))
    return whole, [own[block.setting.zero_group_size] for block in placed]


class Memory(NamedTuple):
    """Bytes of those plans of the same sizes that may fit.

    Attributes:
        shards: places of those of which some plan may fit.
        layouts: likewise.
        peak: bytes of all combinations of these, (z, s, l).
    """

    shards: Integers
    layouts: Integers
    peak: Integers


def _memory(whole: PlanGrid, shards: Integers, capacity: int, table: ShardWork, smallest_bytes: int) -> Memory:
    """The memory of the plans of these shards, without what the first stage alone rules out.

    The smallest plan so far takes `smallest_bytes`, which are 0 where there is none.
    """
    block = whole.part(ALL, shards, ALL)
    first = np.broadcast_to(first_stage_bytes(block.setting, block.plans, table.of(block.plans)), block.shape)
    # A plan that needs more than the device has, and more than another plan, is counted as legal and nothing else.
    may_fit = block.legal & (first <= max(capacity, smallest_bytes or NEVER_FITS - 1))
    promising, layouts = _places_of(may_fit)
    kept, first = block.part(ALL, promising, layouts), first[:, promising][:, :, layouts]
    # The other stages of no plan are not asked for.
    peak = peak_bytes(kept.setting, kept.plans, table.of(kept.plans), first) if first.size else first
    return Memory(shards[promising], layouts, np.where(kept.legal, peak, NEVER_FITS))


def _rank(block: PlanGrid, memory: Memory, capacity: int, headroom_bytes: int, bounds: Bounds, tally: Tally) -> None:
    """Count the plans that fit, and price the time of those that may be among the best."""
    kept = block.part(ALL, memory.shards, memory.layouts)
    fits = (memory.peak <= capacity - headroom_bytes) & kept.legal
    crowded = (memory.peak <= capacity) & kept.legal & ~fits
    tally.count(kept, memory.peak, fits)
    if not (fits.any() or crowded.any()):
        return
    least, zero_stages = bounds.of_plans(kept), block.plans.zero_stage.ravel()
    # ZeRO 0 and 1 add no collectives to a single micro-batch, while 2 and 3 each add their own. Grouped like this, the
    # pipeline, which is the costly part, is computed once for each kind instead of once for each ZeRO stage.
    for kind in (zero_stages <= 1, zero_stages == 2, zero_stages == 3):
        stages = np.flatnonzero(kind)
        # What the kind before has found rules out more of the next.
        wanted = fits[stages] & (least < tally.slowest_of_interest(kept))
        wanted |= crowded[stages] & (least < tally.least)
        if wanted.any():
            # The part is the smallest grid with all that are wanted; its others are left out by the mask.
            shards, layouts = _places_of(wanted)
            some = wanted.any(axis=(1, 2))
            stages, wanted = stages[some], wanted[some]
            part = kept.part(stages, shards, layouts)
            prices = price_step(part.setting, part.plans, bounds.table.of(part.plans))
            seconds = np.where(wanted[:, shards][:, :, layouts], prices.total_seconds, inf)
            peak = memory.peak[stages][:, shards][:, :, layouts]
            handicaps, full = handicap(part.setting, part.plans, peak), peak > capacity - headroom_bytes
            tally.note(part, seconds, full)
            if bounds.with_fewest_ports is None or not has_shared_ports(part):
                tally.rank(part, seconds, seconds * handicaps, full)
            else:
                _rank_hedged(part, seconds, handicaps, full, bounds, tally)


def _rank_hedged(
    block: PlanGrid,
    seconds: Floats,
    handicaps: Floats,
    full: Booleans,
    bounds: Bounds,
    tally: Tally,
) -> None:
    """Rank by the geometric mean of the seconds as declared and on a cluster whose rings leave nodes by fewer ports.

    That is no less than the seconds as declared, so that only plans are priced again that may be among the best by
    these. The first ones of each family come first, as they soon set a limit.
    """
    assert bounds.with_fewest_ports is not None
    cluster, table = bounds.with_fewest_ports
    counted = seconds * handicaps
    is_first: Booleans = np.zeros(counted.shape, dtype=bool)
    for _, of_family in block.families:
        own = counted[:, of_family]
        few = np.argpartition(own, FIRST, axis=None)[:FIRST] if own.size > FIRST else np.arange(own.size)
        is_first[:, of_family][np.unravel_index(few, own.shape)] = True
    for chosen in (is_first, ~is_first):
        limits = np.where(full, tally.least, tally.slowest_of_interest(block))
        shards, layouts = _places_of(chosen & (counted < limits))
        if shards.size:
            part = block.part(ALL, shards, layouts)
            own = np.where(chosen, seconds, inf)[:, shards][:, :, layouts]
            slow = price_step(replace(part.setting, cluster=cluster), part.plans, table.of(part.plans)).total_seconds
            hedged = geometric_mean(own, slow) * handicaps[:, shards][:, :, layouts]
            tally.rank(part, own, hedged, full[:, shards][:, :, layouts])


def geometric_mean(declared: Floats, fewest: Floats) -> Floats:
    """Of a step's seconds as declared and with the fewest ports, which make none faster."""
    return np.sqrt(declared * np.maximum(declared, fewest))


def has_shared_ports(block: PlanGrid) -> bool:
    """True if a ring of such plans may have several ranks in one node and others in another."""
    sizes, devices = block.sizes, block.setting.cluster.devices_per_node
    ranks = sizes.tensor * sizes.num_replicas
    return sizes.tensor != devices and ranks * sizes.pipeline > devices and ranks > 1


def _places_of(marked: Booleans) -> tuple[Integers, Integers]:
    """The shards and the layouts of a block in which something is marked."""
    crossed: Booleans = np.any(marked, axis=0)
    return np.flatnonzero(crossed.any(axis=1)), np.flatnonzero(crossed.any(axis=0))


def _parts(block: PlanGrid) -> list[Integers]:
    """The places of a block's shards; if it has too many plans, in several parts."""
    num_zero_stages, num_shards, num_layouts = block.shape
    step = max(1, MOST_PLANS_AT_ONCE // (num_layouts * num_zero_stages))
    return [np.arange(start, min(start + step, num_shards)) for start in range(0, num_shards, step)]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Plans with their predicted steps, best first; equally good ones are in the order of the space.

    Attributes:
        plans: in columns, (k,).
        step_seconds: (k,).
        counted_seconds: the same with what departures from plain plans count (`plainness`), ascending, (k,).
        settings: in which each is priced: where its optimizer states and its ranks are placed.
    """

    plans: Plans
    step_seconds: Floats
    counted_seconds: Floats
    settings: tuple[Setting, ...]

    def __len__(self) -> int:
        return len(self.settings)

    @property
    def least(self) -> float:
        """What the best counts, in seconds."""
        return float(self.counted_seconds[0])

    def first(self, number: int) -> Ranked:
        some = slice(0, number)
        return Ranked(self.plans.rows(some), self.step_seconds[some], self.counted_seconds[some], self.settings[some])


@dataclass(frozen=True, slots=True)
class Found:
    """The result of the search of one space.

    Attributes:
        best: the best feasible plans. None if no plan is feasible.
        families: the best feasible plan of every family that has one, likewise; where no limit is set, of the best
            `top` of them and those that take up to REACH times as long as the best.
        crowded: the best plan of those that would leave too little memory free, if it is better than any of `best`.
        fastest: the fastest feasible plan, however far it departs from plain ones. None if no plan is feasible.
        fastest_seconds: step of the fastest plan that fits, whether it keeps the limit or not; infinite if none fits.
        smallest_bytes: memory of the legal plan that needs least; 0 if there is no legal plan.
    """

    num_strategies: int
    num_fitting: int
    num_feasible: int
    num_families: int
    best: Ranked | None
    families: Ranked | None
    crowded: Ranked | None
    fastest: Ranked | None
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
        self.kept: list[Ranked] = []
        self.crowded: Ranked | None = None
        self.fastest: Ranked | None = None
        self.families: dict[Family, Ranked] = {}
        self.fitting_families: set[Family] = set()
        self.worst_kept = inf

    def slowest_of_interest(self, block: PlanGrid) -> Floats:
        """Seconds from which on a plan of these shards is none that `result` names, (1, s, 1)."""
        limits = np.full((1, block.shape[1], 1), inf)
        if self.longest_step_seconds < inf:
            return limits  # the plans within the limit are counted by their times
        leaders = sorted(leader.least for leader in self.families.values())
        last = leaders[self.top - 1] if len(leaders) >= self.top else inf
        of_families = max(last, REACH * leaders[0]) if leaders else inf
        for family, shards in block.families:
            own = self.families[family].least if family in self.families else inf
            limits[:, shards] = max(self.worst_kept, min(own, of_families))
        return limits

    @property
    def least(self) -> float:
        """What the best plan so far counts in seconds, whether it leaves enough memory free or not."""
        return min((ranked.least for ranked in (*self.kept, self.crowded) if ranked is not None), default=inf)

    def count(self, block: PlanGrid, peak: Integers, fits: Booleans) -> None:
        """Take in the memory of a block's plans, and which of them fit."""
        self.num_fitting += int(np.count_nonzero(fits))
        of_shards: Booleans = np.any(fits, axis=(0, 2))
        self.fitting_families.update(family for family, shards in block.families if of_shards[shards].any())
        smallest_bytes = int(peak.min(initial=NEVER_FITS))
        if smallest_bytes < NEVER_FITS:
            self.smallest_bytes = min(self.smallest_bytes or smallest_bytes, smallest_bytes)

    def note(self, block: PlanGrid, seconds: Floats, crowded: Booleans) -> None:
        """Take in the seconds of a block's plans. An infinite time marks a plan that is none of them.

        Args:
            crowded: marks those that leave too little memory free.
        """
        own = np.where(crowded, inf, seconds) if crowded.any() else seconds
        least = float(own.min())
        self.fastest_seconds = min(self.fastest_seconds, least)
        if self.longest_step_seconds < inf:
            own = np.where(self._within(own), own, inf)
            self.num_feasible += int(np.count_nonzero(own < inf))
        if self.fastest is None or least < self.fastest.step_seconds[0]:
            fastest = inf if self.fastest is None else float(self.fastest.step_seconds[0])
            self.fastest = _leader(block, ALL, own, fastest, own, own) or self.fastest

    def _within(self, seconds: Floats) -> Booleans:
        # The largest finite number keeps infinite times out also where no limit is set.
        return seconds <= min(self.longest_step_seconds, np.finfo(np.float64).max)

    def rank(self, block: PlanGrid, seconds: Floats, counted: Floats, crowded: Booleans) -> None:
        """Take in what a block's plans count, as `note` takes their seconds."""
        within = self._within(seconds)
        feasible = within & ~crowded
        if crowded.any():
            too_full = np.where(within & crowded, counted, inf)
            self.crowded = _leader(block, ALL, too_full, self.least, seconds, too_full) or self.crowded
        seconds, counted = np.where(feasible, seconds, inf), np.where(feasible, counted, inf)
        for family, shards in block.families:
            own = self.families[family].least if family in self.families else inf
            leader = _leader(block, shards, counted, own, seconds, counted)
            if leader is not None:
                self.families[family] = leader
        (places,) = np.nonzero((counted < self.worst_kept).ravel())
        if len(places) == 0:
            return
        # A stable sort keeps equally good plans in the order of the space, where the plainer plan comes first.
        places = places[np.argsort(counted.ravel()[places], kind="stable")[: self.top]]
        self.kept = [_joined([*self.kept, _rows(block, places, seconds, counted)]).first(self.top)]
        if len(self.kept[0]) == self.top:
            self.worst_kept = float(self.kept[0].counted_seconds[-1])

    def result(self) -> Found:
        is_free = self.longest_step_seconds == inf
        return Found(
            num_strategies=self.num_strategies,
            num_fitting=self.num_fitting,
            num_feasible=self.num_fitting if is_free else self.num_feasible,
            num_families=len(self.fitting_families if is_free else self.families),
            best=self.kept[0] if self.kept else None,
            families=_joined(list(self.families.values())) if self.families else None,
            crowded=None if self.crowded is None or self.crowded.least > self.least else self.crowded,
            fastest=self.fastest,
            fastest_seconds=self.fastest_seconds,
            smallest_bytes=self.smallest_bytes,
        )


def _leader(
    block: PlanGrid, shards: slice, keys: Floats, limit: float, seconds: Floats, counted: Floats
) -> Ranked | None:
    """The plan of these shards whose key is the least; None where that is not below a limit."""
    own = keys[:, shards]
    index = int(own.argmin())
    if not own.ravel()[index] < limit:
        return None
    return _rows(block.part(ALL, shards, ALL), np.array([index]), seconds[:, shards], counted[:, shards])


def _rows(block: PlanGrid, places: Integers, seconds: Floats, counted: Floats) -> Ranked:
    """Plans by their places in a block."""
    settings = (block.setting,) * len(places)
    return Ranked(block.rows(places), seconds.ravel()[places], counted.ravel()[places], settings)


def _joined(parts: Sequence[Ranked]) -> Ranked:
    """All of these plans, best first."""
    counted = np.concatenate([part.counted_seconds for part in parts])
    order = np.argsort(counted, kind="stable")
    settings = [setting for part in parts for setting in part.settings]
    return Ranked(
        Plans.join([part.plans for part in parts]).rows(order),
        np.concatenate([part.step_seconds for part in parts])[order],
        counted[order],
        tuple(settings[place] for place in order.tolist()),
    )
