"""A sweep replayed: every point of its axes on a made-up machine, and how many jobs searches need to find the best.

Nothing is measured. The machine is the cost model with other constants, effects that it does not know, and noise, so
that a replay shows how a search behaves, and nothing about a real cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from conf.errors import InfeasiblePlan
from conf.plan.experiment import Experiment
from sweeps.points.axes import AxisSpace, spaces_of
from sweeps.points.plan import SweepPart, make_trials
from sweeps.replay.machine import InventedMachine
from sweeps.replay.reading import ReplayedReading, replayed_reading
from sweeps.replay.run import replay_trial
from sweeps.search.axes.seen_points import PointKey, point_key
from sweeps.trial import Trial
from train_core.costs.counts.flops import model_flops
from train_core.costs.estimate import plan_of, setting_of
from train_core.costs.setting import Booleans, Floats, Plans

NEAR = 0.98
"""The share of the best point's rate that counts as found."""


@dataclass(frozen=True)
class Study:
    """The points of a sweep that can exist, whether they fit or not."""

    part: SweepPart

    @cached_property
    def spaces(self) -> list[AxisSpace]:
        return spaces_of(self.part.points, self.part.tree, self.part.pinned)

    @cached_property
    def trials(self) -> list[Trial]:
        every = make_trials(self.part.tree, self.part.points, self.part.pinned)
        trials = [trial for trial in every if trial.experiment is not None]
        if not trials:
            value, remedy = self.part.points.model_dump()["axes"], "Widen the axes, or drop an override."
            raise InfeasiblePlan("sweep.axes", value, "hold no point that can exist", remedy)
        return trials

    @cached_property
    def experiments(self) -> list[Experiment]:
        return [trial.experiment for trial in self.trials if trial.experiment is not None]

    @cached_property
    def rows_of_points(self) -> dict[PointKey, int]:
        """The number of each point."""
        return {point_key(trial.point): row for row, trial in enumerate(self.trials)}

    def rows_of(self, trials: Sequence[Trial]) -> list[int]:
        """The numbers of those that are to be measured, such as the baseline that a sweep plans."""
        known = {trial.trial_id: row for row, trial in enumerate(self.trials)}
        return [known[trial.trial_id] for trial in trials if trial.selected and trial.trial_id in known]

    @cached_property
    def is_searched(self) -> Booleans:
        """The mask of trials that are points of the axes: the baseline alone need not be one."""
        return np.array([not trial.is_baseline for trial in self.trials], dtype=bool)

    @cached_property
    def fits_on_paper(self) -> Booleans:
        """The mask of searched trials that fit by the cost model."""
        return self.is_searched & [trial.infeasible_reason is None for trial in self.trials]

    @cached_property
    def plans(self) -> Plans:
        columns = [plan_of(experiment) for experiment in self.experiments]
        return Plans(**{name: np.concatenate([getattr(each, name) for each in columns]) for name in Plans.__slots__})

    def on(self, machine: InventedMachine) -> Ground:
        setting = setting_of(self.experiments[0])
        truth = machine.truth(setting, self.plans)
        flops = np.array([model_flops(each.model, each.batch.global_batch_size) for each in self.experiments])
        rates: Floats = flops / truth.step_seconds / self.plans.world_size
        fits: Booleans = truth.peak_memory_bytes <= setting.cluster.device.memory_bytes
        return Ground(self, machine, np.where(fits, rates, 0.0))


@dataclass(frozen=True)
class Ground:
    """A study on one machine.

    Attributes:
        rates: model FLOP/s per device of every trial, without noise; 0 where it runs out of memory.
    """

    study: Study
    machine: InventedMachine
    rates: Floats

    def reading_of(self, row: int) -> ReplayedReading:
        """Return how the trial ends, with noise."""
        return replayed_reading(self.study.trials[row], replay_trial(self.machine, self.study.experiments[row]))

    @cached_property
    def best_rate(self) -> float:
        return float(self.rates[self.study.is_searched].max())

    def share_of_best(self, row: int) -> float:
        """The trial's true rate as a share of the best; 0 of what is not searched, whose rate says nothing here."""
        return float(self.rates[row] / self.best_rate) if self.study.is_searched[row] else 0.0


@dataclass(frozen=True, slots=True)
class Played:
    """One search on one machine.

    Attributes:
        found_at: the first job within 2 % of the best; None where none was.
        num_jobs: until then, or until the search ended.
        num_lost: how many of them ran out of memory.
        share: what the best of them reached of the best rate.
    """

    found_at: int | None
    num_jobs: int
    num_lost: int
    share: float


def score(ground: Ground, rows: Sequence[int]) -> Played:
    """Return the score of the jobs that a search asked for, in their order."""
    shares = [ground.share_of_best(row) for row in rows]
    found = next((number for number, share in enumerate(shares, start=1) if share >= NEAR), None)
    return Played(found, len(rows), sum(ground.rates[row] == 0.0 for row in rows), max(shares, default=0.0))
