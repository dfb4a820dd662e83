"""Measured steps, and what the cost model says of them with other constants: what fits price hundreds of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.cluster_spec import EfficiencySpec
from conf.setup import Setup
from train_core.costs.estimate import plan_of, setting_of
from train_core.costs.scale import Scale
from train_core.costs.setting import Plans, Setting
from train_core.costs.stages import listed_stages, spread_stages
from train_core.costs.step.priced_stage import priced_stages
from train_core.costs.step.step_time import step_columns
from train_core.costs.trainers.implementation import Implementation
from train_core.costs.work import work_of


@dataclass(frozen=True)
class MeasuredRun:
    """One configuration, the trainer that ran it, and the seconds that a step took."""

    setup: Setup
    implementation: Implementation
    step_seconds: float


class Constants(NamedTuple):
    """Everything in the cost model that may be fitted, for one run."""

    efficiency: EfficiencySpec
    implementation: Implementation
    scale: Scale


ConstantsOf = Callable[[Setting], Constants]
"""The constants to price a setting with."""


def present_constants(setting: Setting) -> Constants:
    return Constants(setting.cluster.efficiency, setting.implementation, setting.scale)


class PricedRuns:
    """Runs that are priced again and again, those together that share all but the plan.

    What a constant does not touch is not priced again.
    """

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        self.runs = runs
        self.measured = np.array([run.step_seconds for run in runs])
        self._groups = [_Group([runs[index] for index in indices], indices) for indices in _priced_together(runs)]

    @property
    def settings(self) -> list[Setting]:
        """Every setting among the runs, once."""
        return [group.setting for group in self._groups]

    def step_seconds(self, constants_of: ConstantsOf = present_constants) -> NDArray[np.float64]:
        """Predicted seconds of every run, (n,)."""
        seconds = np.zeros(len(self.runs))
        for group in self._groups:
            seconds[group.indices] = group.step_seconds(constants_of(group.setting))
        return seconds

    def log_ratios(self, constants_of: ConstantsOf = present_constants) -> NDArray[np.float64]:
        """Log of predicted over measured, (n,): being half as fast weighs as much as being twice as fast."""
        ratios: NDArray[np.float64] = np.log(self.step_seconds(constants_of) / self.measured)
        return ratios


class _Group:
    """Runs of one setting."""

    def __init__(self, runs: Sequence[MeasuredRun], indices: list[int]) -> None:
        self.indices = indices
        self.setting = setting_of(runs[0].setup, runs[0].implementation)
        plans = [plan_of(run.setup) for run in runs]
        columns = {field.name: np.concatenate([getattr(plan, field.name) for plan in plans]) for field in fields(Plans)}
        self._plans = Plans(**columns)
        # The vectorised cost model spreads layers evenly; where they are listed, the run is alone in its group.
        self._stages = (
            spread_stages(self._plans, self.setting.model.num_layers)
            if runs[0].setup.parallel.layers_per_stage is None
            else listed_stages(runs[0].setup.layers_per_stage)
        )
        self._last: tuple[Constants, NDArray[np.float64]] | None = None

    def step_seconds(self, constants: Constants) -> NDArray[np.float64]:
        if self._last is None or self._last[0] != constants:
            self._last = constants, self._price(constants)
        return self._last[1]

    def _price(self, constants: Constants) -> NDArray[np.float64]:
        cluster = self.setting.cluster.model_copy(update={"efficiency": constants.efficiency})
        kind, scale = constants.implementation, constants.scale
        setting = replace(self.setting, cluster=cluster, implementation=kind, scale=scale)
        step = step_columns(priced_stages(setting, self._plans, work_of(setting, self._plans), self._stages))
        return np.broadcast_to(np.asarray(step.total_seconds, dtype=np.float64), (len(self.indices),))


def _priced_together(runs: Sequence[MeasuredRun]) -> list[list[int]]:
    """Indices of the runs that differ in their plans alone."""
    groups: dict[object, list[int]] = {}
    for index, run in enumerate(runs):
        setting, alone = setting_of(run.setup, run.implementation), run.setup.parallel.layers_per_stage
        cluster = run.setup.cluster
        shared = [getattr(setting, field.name) for field in fields(Setting) if field.name != "cluster"]
        # How many nodes the cluster has is not asked: what a run costs depends on how many its ranks fill.
        key = (*shared, cluster.name, cluster.devices_per_node, index if alone else None)
        groups.setdefault(key, []).append(index)
    return list(groups.values())
