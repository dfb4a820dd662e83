"""The plans that an adaptive search chooses among: those that the trainer runs and that nearly fit on paper.

None of them is predicted to take more than HOPELESS times as long as the fastest, and of each schedule and ZeRO stage
there are at most MOST_OF_A_KIND. What a surrogate cannot tell apart is as configured (`_as_configured`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from math import inf
from typing import Protocol

import numpy as np

from conf.errors import InfeasiblePlan
from conf.plan.experiment import Experiment, ExperimentParts
from conf.plan.setup import Setup
from conf.types.schema import Value
from costs import IMPLEMENTATIONS, Implementation
from costs.estimate import plan_of, setting_of
from costs.setting import Plans
from sweeps.planner.plans.space import Placing, Space
from sweeps.planner.plans.strategy import Strategy, strategies_of
from sweeps.planner.plans.whole_space import search_space
from sweeps.planner.points import KIND_KEYS, PlannedPoint, kinds_of, refused_key
from sweeps.points.axes import Point
from sweeps.points.plan import MEMORY_MARGIN
from sweeps.search.layouts.priced import Priced, join_plans, price_with_slopes

HOPELESS = 2.0  # times the step that is predicted for the fastest plan on as many devices
MOST_OF_A_KIND = 20_000  # the best predicted ones of each schedule and ZeRO stage
PlanKey = tuple[int | bool, ...]


class Candidates(Protocol):
    """Plans by their number, all of them priced."""

    @property
    def prices(self) -> Priced: ...

    @property
    def trainer(self) -> str:
        """The trainer for which they are priced."""

    def experiment(self, row: int) -> Experiment | None:
        """The experiment of a plan; None where it does not go with what else is configured."""

    def point(self, row: int) -> dict[str, Value]: ...

    def row_of(self, experiment: Experiment) -> int | None:
        """The number of the plan that measures the same as this experiment; None if it is none of them."""


class PlansOfSpaces:
    """Every plan of some spaces, which differ in their number of devices."""

    def __init__(
        self,
        spaces: Sequence[Space],
        parts: ExperimentParts,
        margin: float = MEMORY_MARGIN,
        hopeless: float = HOPELESS,
        shared: Mapping[str, Value] | None = None,
    ) -> None:
        self.parts, self.trainer = parts, spaces[0].setting.implementation.name
        self.shared = dict(shared or {})  # values of every point beside its knobs
        # The plans of each space and kind, in the order of their numbers.
        self.by_kind = [
            (space, plans)
            for space in map(_as_configured, spaces)
            for plans in _plans(space, parts, margin, hopeless)
            if len(plans)
        ]
        self._starts = np.cumsum([0, *(len(plans) for _, plans in self.by_kind)])

    @cached_property
    def prices(self) -> Priced:
        return join_plans(
            [price_with_slopes(space.setting, plans, space.global_batch_size) for space, plans in self.by_kind]
        )

    def strategy(self, row: int) -> Strategy:
        # Kinds follow one another, so that a plan's kind is the last one that starts at or before its number.
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        space, plans = self.by_kind[number]
        return _strategy(space, plans, row - int(self._starts[number]))

    def experiment(self, row: int) -> Experiment | None:
        try:
            return self.strategy(row).experiment(self.parts)
        except InfeasiblePlan:
            return None

    def point(self, row: int) -> dict[str, Value]:
        return {**self.shared, **PlannedPoint(self.strategy(row), "").values()}

    def row_of(self, experiment: Experiment) -> int | None:
        row = self._rows.get(key_of(experiment))
        # Equal knobs do not make equal experiments: a trial may differ in what no plan has, such as its data.
        same = None if row is None else self.experiment(row)
        return row if same is not None and same.fingerprint == experiment.fingerprint else None

    @cached_property
    def _rows(self) -> dict[PlanKey, int]:
        keys = chain.from_iterable(_keys(plans) for _, plans in self.by_kind)
        return {key: row for row, key in enumerate(keys)}


class ListedPoints:
    """Plans that somebody listed, such as the points of a sweep's file, each with its experiment and its price."""

    def __init__(self, experiments: Sequence[Experiment], points: Sequence[Point], prices: Priced) -> None:
        self.experiments, self.points, self.prices = experiments, points, prices
        self._rows = {experiment.fingerprint: row for row, experiment in enumerate(experiments)}

    @property
    def trainer(self) -> str:
        return self.experiments[0].trainer.costs_of

    def experiment(self, row: int) -> Experiment | None:
        return self.experiments[row]

    def point(self, row: int) -> Point:
        return self.points[row]

    def row_of(self, experiment: Experiment) -> int | None:
        return self._rows.get(experiment.fingerprint)


def priced_experiment(experiment: Experiment) -> Priced:
    """One experiment in columns of one entry, as its trainer carries it out."""
    return priced_setup(experiment, IMPLEMENTATIONS[experiment.trainer.costs_of])


def priced_setup(setup: Setup, implementation: Implementation) -> Priced:
    return price_with_slopes(setting_of(setup, implementation), plan_of(setup), setup.batch.global_batch_size)


def key_of(experiment: Experiment) -> PlanKey:
    return next(_keys(plan_of(experiment)))


def _keys(plans: Plans) -> Iterator[PlanKey]:
    return zip(*(getattr(plans, name).tolist() for name in Plans.__slots__), strict=True)


def _as_configured(space: Space) -> Space:
    """The space with what a surrogate cannot tell apart as it is configured, in its pins and in its setting.

    That is in how many layers something is recomputed, and where states of the optimizer and ranks are placed.
    """
    placing = Placing(zero_group_size=None, offload_optimizer=False, pipeline_before_data=False)._asdict()
    placing |= {name: value for name, value in space.pinned.items() if name in placing}
    pinned = {"recompute_every": 1, **space.pinned, **placing}
    return replace(space, pinned=pinned, setting=replace(space.setting, **placing), as_declared=True)


def _plans(space: Space, parts: ExperimentParts, margin: float, hopeless: float) -> list[Plans]:
    """The plans that fit or nearly do, without those that are hopeless, or ruled out by what else is configured."""
    found = [search_space(kind, MOST_OF_A_KIND) for kind in kinds_of(_with_margin(space, margin))]
    longest = hopeless * min((one.fastest_seconds for one in found), default=inf)
    kept = [one.best.plans.rows(one.step_seconds <= longest) for one in found if one.best is not None]
    # Of each kind the first plan is asked about.
    running = [
        plans for plans in kept if len(plans) and refused_key(_strategy(space, plans, 0), parts) not in KIND_KEYS
    ]
    # The ZeRO stages of a single replica are all the same plan.
    keeps_all = "zero_stage" in space.pinned
    return [plans.rows((plans.data_parallel_size > 1) | (plans.zero_stage == 0) | keeps_all) for plans in running]


def _strategy(space: Space, plans: Plans, row: int) -> Strategy:
    layers, across = space.setting.model.num_layers, space.tensor_parallel_across_nodes
    one, settings = plans.rows(slice(row, row + 1)), [space.setting]
    return strategies_of(one, layers, tensor_parallel_across_nodes=across, settings=settings)[0]


def _with_margin(space: Space, margin: float) -> Space:
    """The space on devices with so many times their memory."""
    cluster, device = space.setting.cluster, space.setting.cluster.device
    larger = device.model_copy(update={"memory_bytes": int(device.memory_bytes * margin)})
    return replace(space, setting=replace(space.setting, cluster=cluster.model_copy(update={"device": larger})))
