"""The search of any axes: further points are drawn at random or by what was measured, out of those that can run.

A draw that is not legal, does not fit on paper, breaks a constraint or was tried before is drawn again. So every job
goes to a new point that should run. Points that the sweep's file lists come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from conf.errors import ConfigError
from conf.load import Tree
from conf.sweep_spec import SearchPlan
from sweeps.axes import AxisSpace, Point
from sweeps.plan import trial_of
from sweeps.reading import TrialReading
from sweeps.search.draws import Draws, RandomDraws, drawn, grid_points
from sweeps.search.lessons import lessons
from sweeps.search.more_seeds import further_seeds
from sweeps.search.searcher import Answer, Proposal, Pruning
from sweeps.search.seen_points import IN_FLIGHT, PointKey, SeenPoint, point_key, seen_points
from sweeps.search.step_pruning import prunings
from sweeps.search.tpe import TpeDraws

MOST_DRAWS = 300
"""Draws for one point. A space where so many in a row bring nothing new is taken point by point, if it can be."""
MOST_LISTED = 20_000
"""The largest grid that is gone through for what the draws have left over, which takes half a minute."""
NUM_RANDOM = 8
"""Points that are drawn at random before what they have shown says anything about others."""
PATIENCE = 10
"""The search gives up after so many points in a row without a gain, or twice its number of axes if that is more."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What was tried or is proposed already: points, and the trials that they came to."""

    points: set[PointKey]
    trial_ids: set[str]


@dataclass
class AxisSearch:
    """Draws points of some blocks of axes.

    Attributes:
        listed: points to try before any draw.
        max_trials: the most trials of the sweep, whatever their seeds.
    """

    tree: Tree
    spaces: Sequence[AxisSpace]
    listed: Sequence[Point]
    plan: SearchPlan
    max_trials: int
    _useless: set[PointKey] = field(default_factory=set)
    """Points that cannot run, which follows from the configuration alone."""

    def ask(self, trials: Sequence[TrialReading], count: int) -> Answer:
        seen = seen_points(trials, self.plan.objective)
        left = self.max_trials - sum(reading.outcome is not None for reading in trials)
        proposals, why_last = self._next(trials, seen, min(count, left)) if left > 0 else ([], self._all_asked)
        # What is in flight may still deserve further seeds, or show that the search is worth going on with.
        if proposals or count <= 0 or any(reading.outcome in IN_FLIGHT for reading in trials):
            return Answer(tuple(proposals))
        return Answer(finished=why_last)

    def _next(
        self, trials: Sequence[TrialReading], seen: Sequence[SeenPoint], count: int
    ) -> tuple[list[Proposal], str]:
        """Up to `count` proposals, further seeds first; and why there is no new point, where there is none."""
        proposals = self._seeds(seen, is_last=False)[:count]
        why_last = self._why_enough(seen)
        if not why_last:
            proposals += self._new(trials, seen, count - len(proposals))
            why_last = "every point that can run was tried" if self.spaces else "every listed point was tried"
        if not proposals and all(each.costs is not None for each in seen if each.is_in_flight):
            proposals = self._seeds(seen, is_last=True)[:count]
        return proposals, why_last

    @property
    def _all_asked(self) -> str:
        return f"all of sweep.max_trials = {self.max_trials} trials were asked for"

    def prune(self, trials: Sequence[TrialReading]) -> list[Pruning]:
        return prunings(self.plan.pruner, trials)

    def learned(self, trials: Sequence[TrialReading]) -> list[str]:
        return lessons(self.plan, seen_points(trials, self.plan.objective))

    def _seeds(self, seen: Sequence[SeenPoint], *, is_last: bool) -> list[Proposal]:
        return further_seeds(seen, self.plan.objective, self.plan.num_seeds, self.tree, is_last=is_last)

    def _why_enough(self, seen: Sequence[SeenPoint]) -> str:
        """Why no new point is worth trying; empty while one is."""
        costs = [each.costs[0] for each in seen if each.costs is not None]
        dimensions = max((len(space.dimensions) for space in self.spaces), default=0)
        patience = max(PATIENCE, 2 * dimensions)
        if not self.plan.min_gain or len(self.plan.objective) > 1 or len(costs) <= patience:
            return ""
        before, after = min(costs[:-patience]), min(costs)
        if before - after >= self.plan.min_gain * abs(before):
            return ""
        share = f"{self.plan.min_gain:.2%} (search.min_gain)"
        return f"none of the last {patience} points bettered the best by {share}"

    def _new(self, trials: Sequence[TrialReading], seen: Sequence[SeenPoint], count: int) -> list[Proposal]:
        """Up to `count` points that were not tried: listed ones, then drawn ones, then what draws no longer find."""
        taken = Taken({each.key for each in seen}, {reading.trial.trial_id for reading in trials})
        listed = islice(self._fresh(self.listed, taken), count)
        found = [Proposal(point, "listed in the sweep's file") for point in listed]
        if len(found) < count and self.spaces:
            found += self._drawn(trials, seen, taken, count - len(found))
        if len(found) < count and sum(space.num_combinations for space in self.spaces) <= MOST_LISTED:
            rest = self._fresh(grid_points(self.spaces), taken)
            found += [
                Proposal(point, "one of the last that were not tried") for point in islice(rest, count - len(found))
            ]
        return found

    def _drawn(
        self, trials: Sequence[TrialReading], seen: Sequence[SeenPoint], taken: Taken, count: int
    ) -> list[Proposal]:
        draws, because = self._draws(trials, seen)
        found, fruitless = list[Proposal](), 0
        while len(found) < count and fruitless < MOST_DRAWS:
            point = drawn(self.spaces, draws.chooser())
            if point is not None and self._is_fresh(point, taken):
                found.append(Proposal(point, because))
                fruitless = 0
            else:
                draws.refuse()
                fruitless += 1
        return found

    def _draws(self, trials: Sequence[TrialReading], seen: Sequence[SeenPoint]) -> tuple[Draws, str]:
        # The number of trials makes a new seed for each question, and the same trials lead to the same points.
        seeds = np.random.SeedSequence([self.plan.seed, len(trials)])
        num_ended = sum(each.costs is not None for each in seen)
        if self.plan.kind == "random" or num_ended < NUM_RANDOM:
            return RandomDraws(np.random.default_rng(seeds)), "drawn at random from the axes"
        seed, num_objectives = int(seeds.generate_state(1)[0]), len(self.plan.objective)
        return TpeDraws(self.spaces, seen, num_objectives, seed), f"chosen by what {num_ended} points have shown"

    def _fresh(self, points: Iterable[Point], taken: Taken) -> Iterator[Point]:
        return (point for point in points if self._is_fresh(point, taken))

    def _is_fresh(self, point: Point, taken: Taken) -> bool:
        """Whether the point can run and nobody has tried it; it is taken from now on."""
        key = point_key(point)
        if key in taken.points or key in self._useless:
            return False
        try:
            trial = trial_of(self.tree, point, "")
        except ConfigError:  # a value that is wrong at this point only, such as a batch below 1
            self._useless.add(key)
            return False
        if not trial.selected:
            self._useless.add(key)
            return False
        # Different points may come to the same experiment, such as one that names a default and one that does not.
        is_fresh = trial.trial_id not in taken.trial_ids
        taken.points.add(key)
        taken.trial_ids.add(trial.trial_id)
        return is_fresh
