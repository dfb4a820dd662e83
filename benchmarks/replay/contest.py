"""The searches of a replayed sweep side by side: the points of its axes, on the same machines, by the count of jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from benchmarks.replay.machine import InventedMachine
from benchmarks.replay.players import Game, Ground, Player, RandomPlayer, SearchPlayer, TpePlayer, play
from benchmarks.replay.run import ReplayedReading, replay_trial, replayed_reading
from conf.compose.load import Composition
from conf.errors import InfeasiblePlan
from conf.plan.experiment import Experiment
from conf.types.sweep_spec import ReplaySpec
from costs.counts.flops import model_flops
from costs.estimate import plans_of, setting_of
from costs.setting import Booleans, Floats, Plans
from sweeps.points.axes import AxisSpace, Point, spaces_of
from sweeps.points.plan import SweepPart, make_trials, part_of
from sweeps.search.axes.draws import draw_point
from sweeps.search.axes.samplers import SamplerChooser
from sweeps.search.axes.seen_points import PointKey, point_key
from sweeps.search.registry import search_for
from sweeps.trial import SweepRecord, Trial


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
        point = draw_point(self.spaces, SamplerChooser(trial))
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
    study: Study
    machine: InventedMachine

    def reading_of(self, row: int) -> ReplayedReading:
        return replayed_reading(self.study.trials[row], replay_trial(self.machine, self.study.experiments[row]))

    def row_of_point(self, point: Point) -> int:
        row = self.study.rows_of_points.get(point_key(point))
        assert row is not None, f"{point} is no point of the study"
        return row


MOST_DRAWS = 3000
MakePlayer = Callable[[StudyGround, int], Player]


@dataclass(frozen=True, slots=True)
class SearchStanding:
    name: str
    games: tuple[Game, ...]

    @property
    def median_jobs(self) -> float:
        """The median of jobs until one was near the best, over the machines."""
        return median(game.counted_jobs for game in self.games)

    @property
    def most_jobs(self) -> float:
        return max(game.counted_jobs for game in self.games)

    @property
    def share_lost(self) -> float:
        """The share of all jobs that ran out of memory."""
        return sum(game.num_lost for game in self.games) / max(1, sum(game.num_jobs for game in self.games))

    @property
    def worst_share(self) -> float:
        """The least that the best job of a machine reached of the best rate."""
        return min(game.share for game in self.games)


@dataclass(frozen=True, slots=True)
class Contest:
    """The standings of all searches on the points of one sweep."""

    study: Study
    standings: tuple[SearchStanding, ...]


def contest_of(asked: Composition, record: SweepRecord, spec: ReplaySpec) -> Contest:
    """Replay the sweep's own search beside others on each machine.

    TPE knows no cost model: an out-of-memory is a job that failed, as in the Frontier study. It stands for DeepHyper,
    whose optimizer is another one (a forest with an upper confidence bound).

    Raises:
        ConfigError: the sweep cannot be searched as it is told to, or has no point that can exist.
    """
    study = Study(part_of(asked, record.spec, proxy=False))
    search = search_for(asked, record)
    first = study.rows_of(record.trials)
    players: dict[str, MakePlayer] = {
        f"search={asked.settings.search.kind}": lambda ground, seed: SearchPlayer(search, ground, first),
        "random among what fits on paper": RandomPlayer,
        "Optuna's TPE, told FAIL": lambda ground, seed: TpePlayer(ground, seed, study.draw, MOST_DRAWS),
    }
    grounds = [study.on(InventedMachine(seed)) for seed in range(spec.num_machines)]
    return Contest(study, tuple(_standing_of(name, make, grounds, spec) for name, make in players.items()))


def _standing_of(name: str, make: MakePlayer, grounds: Sequence[StudyGround], spec: ReplaySpec) -> SearchStanding:
    games = [play(make(ground, seed), ground, spec.most_jobs) for seed, ground in enumerate(grounds)]
    return SearchStanding(name, tuple(games))
