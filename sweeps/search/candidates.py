"""The plans that an adaptive search chooses among: all that are legal, that fit on paper, and that the trainer runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np

from conf.errors import InfeasiblePlan
from conf.experiment import Experiment, Parts
from conf.schema import Value
from sweeps.planner.points import KIND_KEYS, PlannedPoint, kinds_of, refused_key
from sweeps.planner.search import search_space
from sweeps.planner.space import Space
from sweeps.planner.strategy import Strategy, strategies_of
from sweeps.search.priced import Priced, joined, priced
from sweeps.trial import Trial
from train_core.costs.estimate import plan_of, setting_of
from train_core.costs.setting import Plans

MEMORY_MARGIN = 1.1
"""Plans that are predicted to need up to this share of the memory are kept: the prediction may be too high."""
MOST_OF_A_KIND = 20_000  # the fastest predicted ones of each schedule and ZeRO stage
PlanKey = tuple[int | bool, ...]


class Candidates(Protocol):
    """Plans by their number.

    Attributes:
        priced: all of them, in columns.
    """

    @property
    def priced(self) -> Priced: ...

    def experiment(self, row: int) -> Experiment | None:
        """The experiment of a plan; None where it does not go with what else is configured."""

    def point(self, row: int) -> dict[str, Value]: ...

    def row_of(self, experiment: Experiment) -> int | None:
        """The number of the plan that measures the same as this experiment; None if it is none of them."""


class PlansOfSpaces:
    """Every plan of some spaces, which differ in their number of devices."""

    def __init__(self, spaces: Sequence[Space], parts: Parts) -> None:
        self.parts = parts
        self._kinds = [(space, plans) for space in spaces for plans in _plans_by_kind(space, parts)]
        self._starts = np.cumsum([0, *(len(plans) for _, plans in self._kinds)])
        self.priced = joined([priced(space.setting, plans, space.global_batch_size) for space, plans in self._kinds])

    def strategy(self, row: int) -> Strategy:
        space, _ = self._kinds[int(np.searchsorted(self._starts, row, side="right")) - 1]
        return _strategy(space, self.priced.plans, row)

    def experiment(self, row: int) -> Experiment | None:
        try:
            return self.strategy(row).experiment(self.parts)
        except InfeasiblePlan:
            return None

    def point(self, row: int) -> dict[str, Value]:
        return PlannedPoint(self.strategy(row), "").values()

    def row_of(self, experiment: Experiment) -> int | None:
        row = self._rows.get(key_of(experiment))
        same = None if row is None else self.experiment(row)
        return row if same is not None and same.fingerprint == experiment.fingerprint else None

    @cached_property
    def _rows(self) -> dict[PlanKey, int]:
        return {key: row for row, key in enumerate(_keys(self.priced.plans))}


class ListedPoints:
    """The points that a sweep's file lists, those that fit or nearly do."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = [trial for trial in trials if _may_fit(trial)]
        self.priced: Priced = joined([priced_experiment(_experiment(trial)) for trial in self._trials])

    def experiment(self, row: int) -> Experiment | None:
        return _experiment(self._trials[row])

    def point(self, row: int) -> dict[str, Value]:
        return self._trials[row].point

    def row_of(self, experiment: Experiment) -> int | None:
        return self._rows.get(experiment.fingerprint)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {_experiment(trial).fingerprint: row for row, trial in enumerate(self._trials)}


def priced_experiment(experiment: Experiment) -> Priced:
    """One experiment in columns of one entry."""
    return priced(setting_of(experiment), plan_of(experiment), experiment.batch.global_batch_size)


def key_of(experiment: Experiment) -> PlanKey:
    return next(_keys(plan_of(experiment)))


def _keys(plans: Plans) -> Iterator[PlanKey]:
    return zip(*(getattr(plans, name).tolist() for name in Plans.__slots__), strict=True)


def _plans_by_kind(space: Space, parts: Parts) -> Iterator[Plans]:
    """The plans that fit or nearly do, kind by kind, without the kinds that what else is configured rules out."""
    for kind in kinds_of(_with_margin(space)):
        found = search_space(kind, MOST_OF_A_KIND).best
        if found is None or refused_key(_strategy(kind, found, 0), parts) in KIND_KEYS:
            continue
        # The ZeRO stages of a single replica are all the same plan.
        is_own = (found.data_parallel_size > 1) | (found.zero_stage == 0) | ("zero_stage" in space.pinned)
        if is_own.any():
            yield found.rows(is_own)


def _strategy(space: Space, plans: Plans, row: int) -> Strategy:
    layers, across = space.setting.model.num_layers, space.tensor_parallel_across_nodes
    return strategies_of(plans.rows(slice(row, row + 1)), layers, tensor_parallel_across_nodes=across)[0]


def _with_margin(space: Space) -> Space:
    """The space on devices with a little more memory than they have."""
    cluster, device = space.setting.cluster, space.setting.cluster.device
    larger = device.model_copy(update={"memory_bytes": int(device.memory_bytes * MEMORY_MARGIN)})
    return replace(space, setting=replace(space.setting, cluster=cluster.model_copy(update={"device": larger})))


def _may_fit(trial: Trial) -> bool:
    predicted = trial.estimate
    return predicted is not None and predicted.peak_memory_bytes <= MEMORY_MARGIN * predicted.memory_capacity_bytes


def _experiment(trial: Trial) -> Experiment:
    assert trial.experiment is not None
    return trial.experiment
