"""The memory of a search while blocks of plans go by: counts, the fastest plans, and the best of every family."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from sweeps.planner.blocks import PlanGrid
from sweeps.planner.space import Sizes
from train_core.costs.setting import Floats, Integers, Plans, Setting


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
