"""The points of a sweep as candidates: every point of its axes, on a made-up machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.replay.ground import Ground
from benchmarks.replay.machine import InventedMachine
from benchmarks.replay.reading import ReplayedReading, replayed_reading
from benchmarks.replay.run import replay_trial
from conf.errors import InfeasiblePlan
from conf.plan.experiment import Experiment
from sweeps.points.axes import AxisSpace, Point, spaces_of
from sweeps.points.plan import SweepPart, make_trials
from sweeps.search.axes.draws import draw_point
from sweeps.search.axes.seen_points import PointKey, point_key
from sweeps.search.axes.tpe import TpeChooser
from sweeps.trial import Trial
from train_core.costs.counts.flops import model_flops
from train_core.costs.estimate import plans_of, setting_of
from train_core.costs.setting import Booleans, Floats, Plans


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
        numbers = {trial.trial_id: row for row, trial in enumerate(self.trials)}
        return [numbers[trial.trial_id] for trial in trials if trial.selected and trial.trial_id in numbers]

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
        return plans_of(self.experiments)

    def draw(self, trial: Any) -> int | None:
        """The number of the point on which a trial of Optuna's decides; None where its values are no point."""
        point = draw_point(self.spaces, TpeChooser(trial))
        return None if point is None else self.rows_of_points.get(point_key(point))

    def on(self, machine: InventedMachine) -> StudyGround:
        setting = setting_of(self.experiments[0])
        truth = machine.truth(setting, self.plans)
        flops = np.array([model_flops(each.model, each.batch.global_batch_size) for each in self.experiments])
        rates: Floats = flops / truth.step_seconds / self.plans.world_size
        fits: Booleans = truth.peak_memory_bytes <= setting.cluster.device.memory_bytes
        searched = np.where(fits & self.is_searched, rates, 0.0)
        # The rate of a point that is not searched, such as a baseline beside the axes, says nothing here.
        return StudyGround(searched / searched.max(), fits, self.fits_on_paper, self, machine)


@dataclass(frozen=True, eq=False)
class StudyGround(Ground):
    """The points of a study on one machine."""

    study: Study
    machine: InventedMachine

    def reading_of(self, row: int) -> ReplayedReading:
        return replayed_reading(self.study.trials[row], replay_trial(self.machine, self.study.experiments[row]))

    def row_of_point(self, point: Point) -> int:
        row = self.study.rows_of_points.get(point_key(point))
        assert row is not None, f"{point} is no point of the study"
        return row
