"""The search of any axes: further points are drawn at random or by what was measured, out of those that can run.

A draw that is not legal, does not fit on paper, breaks a constraint or was tried before is drawn again. So every job
goes to a new point that should run. Points that the sweep's file lists come first.

Where seeds differ, a single training says little; the best points get another seed. A point whose first seed is poor is
not worth the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

import numpy as np

from conf.compose.tree import PARAMS, Tree
from conf.errors import ConfigError
from conf.types.sweep_spec import SearchPlan
from conf.units import count_of
from sweeps.folder.journal import ALL_TRIED
from sweeps.points.axes import AxisSpace, Dimension, Point, ValuesTogether, spaces_of, stated_points
from sweeps.points.objectives import front
from sweeps.points.plan import SweepPart, trial_of
from sweeps.reading import TrialReading
from sweeps.search.axes.draws import MOST_LISTED, Draws, RandomChooser, draw_point, grid_points, require_computable
from sweeps.search.axes.samplers import SamplerDraws, require_usable
from sweeps.search.axes.seen_points import PointKey, SeenPoint, best_points, point_key, seen_points, with_seed
from sweeps.search.axes.step_pruning import prunings
from sweeps.search.searcher import Answer, Proposal, Pruning, num_taken
from sweeps.trial import SweepRecord
from train_core.trial.measurement import LIVE, Outcome

MOST_DRAWS = 300
"""Draws for one point. A space where so many in a row bring nothing new is taken point by point, if it can be."""
NUM_RANDOM = 8
"""Points that are drawn at random before what they have shown says anything about others."""
LEARNS_BY_KIND = {"random": False, "bayes": True, "pareto": True}
"""Whether a kind of search draws by what was measured; the others have no axes to draw from."""
PATIENCE = 10
"""With `search.min_gain`, the search ends after so many points in a row without such a gain, or twice its axes."""


@dataclass(frozen=True, slots=True)
class TakenPoints:
    """The points that were tried or are proposed, and the identities of the trials that they came to."""

    points: set[PointKey]
    experiments: set[tuple[str, int]]


@dataclass
class AxisSearch:
    """Draws points of some blocks of axes, after the listed ones; all trials count, whatever their seeds."""

    tree: Tree
    spaces: Sequence[AxisSpace]
    listed: Sequence[Point]
    plan: SearchPlan
    max_trials: int
    _useless: set[PointKey] = field(default_factory=set)
    """Points that cannot run, which follows from the configuration alone."""

    def ask(self, trials: Sequence[TrialReading], count: int) -> Answer:
        seen = seen_points(trials, self.plan.objective)
        left = self.max_trials - num_taken(trials)
        limit = f"all of sweep.max_trials = {count_of(self.max_trials, 'trial', 'was', 'were')} asked for"
        proposals, why_last = self._next(trials, seen, min(count, left)) if left > 0 else ([], limit)
        # What is in flight may still deserve further seeds, or show that the search is worth going on with.
        if proposals or count <= 0 or any(reading.outcome in LIVE for reading in trials):
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
            why_last = "every point that can run was tried" if self.spaces else ALL_TRIED
        if not proposals and all(each.costs is not None for each in seen if each.is_in_flight):
            proposals = self._seeds(seen, is_last=True)[:count]
        return proposals, why_last

    def prune(self, trials: Sequence[TrialReading]) -> list[Pruning]:
        return prunings(self.plan.pruner, trials)

    def lessons(self, trials: Sequence[TrialReading]) -> list[str]:
        return list(best_points(self.plan.objective, seen_points(trials, self.plan.objective)))

    def _seeds(self, seen: Sequence[SeenPoint], *, is_last: bool) -> list[Proposal]:
        return further_seeds(seen, self.plan.num_seeds, self.tree, is_last=is_last)

    def _why_enough(self, seen: Sequence[SeenPoint]) -> str:
        """Return why no new point is worth trying; empty while one is."""
        costs = [each.costs[0] for each in seen if each.costs is not None]
        dimensions = max((len(space.dimensions) for space in self.spaces), default=0)
        patience = max(PATIENCE, 2 * dimensions)
        if not self.plan.min_gain or len(self.plan.objective) > 1 or len(costs) <= patience:
            return ""
        before, after = min(costs[:-patience]), min(costs)
        # Not a share of the best: of losses about 2.5 that would be more than most axes move them.
        lead = median(filter(math.isfinite, costs)) - after if math.isfinite(after) else 0.0
        if before - after > 0 and before - after >= self.plan.min_gain * lead:
            return ""
        share = f"{self.plan.min_gain:.2%} (search.min_gain) of its lead over the median"
        return f"none of the last {patience} points bettered the best by {share}"

    def _new(self, trials: Sequence[TrialReading], seen: Sequence[SeenPoint], count: int) -> list[Proposal]:
        """Up to `count` points that were not tried: listed ones, then drawn ones, then what draws no longer find."""
        taken = TakenPoints({each.key for each in seen}, {reading.trial.identity for reading in trials})
        listed = islice(self._fresh(self.listed, taken), count)
        found = [Proposal(point, "listed in the sweep's file") for point in listed]
        if len(found) < count and self.spaces:
            found += self._draw_proposals(trials, seen, taken, count - len(found))
        if len(found) < count and sum(space.num_combinations for space in self.spaces) <= MOST_LISTED:
            rest = self._fresh(grid_points(self.spaces), taken)
            found += [
                Proposal(point, "one of the last that were not tried") for point in islice(rest, count - len(found))
            ]
        return found

    def _draw_proposals(
        self, trials: Sequence[TrialReading], seen: Sequence[SeenPoint], taken: TakenPoints, count: int
    ) -> list[Proposal]:
        found = list[Proposal]()
        for draws, most, because in self._draws(trials, seen):
            fruitless = 0
            while len(found) < count and fruitless < most:
                point = draw_point(self.spaces, draws.chooser())
                if point is not None and self._is_fresh(point, taken):
                    found.append(Proposal(point, because))
                    fruitless = 0
                else:
                    fruitless += 1
        return found

    def _draws(self, trials: Sequence[TrialReading], seen: Sequence[SeenPoint]) -> Iterator[tuple[Draws, int, str]]:
        """Yield sources of draws, how many in a row may be of no use, and what to say of points drawn there."""
        # The number of trials makes a new seed for each question, and the same trials lead to the same points.
        seeds = np.random.SeedSequence([self.plan.seed, len(trials)])
        num_ended = sum(each.costs is not None or each.ended_as(Outcome.PRUNED) for each in seen)
        if LEARNS_BY_KIND[self.plan.kind] and num_ended >= NUM_RANDOM:
            both = (self.plan.seed, int(seeds.generate_state(1)[0]))
            learned = SamplerDraws(self.spaces, seen, len(self.plan.objective), self.plan.sampler, both)
            yield learned, learned.most_draws, f"chosen by what {num_ended} points have shown"
        yield RandomChooser(np.random.default_rng(seeds)), MOST_DRAWS, "drawn at random from the axes"

    def _fresh(self, points: Iterable[Point], taken: TakenPoints) -> Iterator[Point]:
        return (point for point in points if self._is_fresh(point, taken))

    def _is_fresh(self, point: Point, taken: TakenPoints) -> bool:
        """Return whether the point can run and nobody has tried it; it is taken from now on."""
        key = point_key(point)
        if key in taken.points or key in self._useless:
            return False
        try:
            trial = trial_of(self.tree, point, "")
        except ConfigError:  # a value that is wrong at this point only, such as a batch below 1
            self._useless.add(key)
            return False
        if trial.estimate is None or not trial.estimate.fits:
            self._useless.add(key)
            return False
        # Different points may come to the same experiment, such as one that names a default and one that does not.
        is_fresh = trial.identity not in taken.experiments
        taken.points.add(key)
        taken.experiments.add(trial.identity)
        return is_fresh


def search_of_axes(part: SweepPart, record: SweepRecord) -> AxisSearch:
    """The search that draws from the axes of a sweep.

    Raises ConfigError where there are no axes to draw from, an axis has a value that is wrong wherever it is drawn, or
    a value that follows from others can be computed nowhere.
    """
    spaces = spaces_of(part.points, part.tree, part.pinned)
    plan = part.composition.settings.search
    require_usable(plan)
    if not spaces and not part.points.points:
        raise _without_axes(part)
    _require_valid_values(part.tree, spaces)
    if spaces:
        require_computable(spaces)
    listed = stated_points(part.points, part.tree, part.pinned)
    return AxisSearch(part.tree, spaces, listed, plan, record.spec.max_trials)


def _without_axes(part: SweepPart) -> ConfigError:
    if part.points.blocks:
        given = [f"{key}={value}" for key, value in part.pinned.items() if key in part.points.varied_keys]
        remedy = "Drop an override, or give values that a row of sweep.zip has side by side."
        return ConfigError("sweep.zip", ", ".join(given), "leaves no row to draw from", remedy)
    remedy = "Give the sweep `axes`, or use search=grid or search=planner."
    return ConfigError("search.kind", part.composition.settings.search.kind, "has no axes to draw from", remedy)


def _require_valid_values(tree: Tree, spaces: Sequence[AxisSpace]) -> None:
    """Refuse what is wrong whatever the other axes say, before the first job and not in the middle of the sweep."""
    for space in spaces:
        rows = {dimension: dimension.rows or _ends(dimension) for dimension in space.dimensions if not dimension.needs}
        # A program's own values are known by their axes alone, and its command takes all of them.
        own = [space.resolve(each, row[0], {}) for each, row in rows.items() if each.name.startswith(PARAMS)]
        others = {key: value for point in own for key, value in point.items()}
        for dimension, values in rows.items():  # those that need others are known only together with these
            for row in values:
                trial_of(tree, others | space.resolve(dimension, row, {}), "")


def _ends(dimension: Dimension) -> tuple[ValuesTogether, ...]:
    return ((dimension.axis.low,), (dimension.axis.high,)) if dimension.axis else ()


FEWEST_POINTS = 4
"""Before so many points have ended, half of them is no measure of what is poor."""


def further_seeds(seen: Sequence[SeenPoint], num_seeds: int, tree: Tree, *, is_last: bool) -> list[Proposal]:
    """The next seed of each point that deserves it, best point first; what diverged deserves none.

    Where no further points will come, few ended ones are measure enough.
    """
    ended = [each for each in seen if each.costs is not None]
    if num_seeds == 1 or (len(ended) < FEWEST_POINTS and not is_last):
        return []
    better = [each for each in _better_half(ended) if all(map(math.isfinite, each.costs or ()))]
    waiting = [each for each in better if len(each.readings) < num_seeds and not each.is_in_flight]
    return [
        Proposal(
            with_seed(each.point, len(each.readings), tree),
            f"seed {len(each.readings) + 1} of {num_seeds}: the mean so far is among the better half",
        )
        for each in waiting
    ]


def _better_half(ended: Sequence[SeenPoint]) -> list[SeenPoint]:
    """The better half, best first; of several objectives the front first, then the front of the others."""
    left, ranked = list(ended), list[SeenPoint]()
    while left:
        best = front([each.costs or () for each in left])
        ranked += [left[number] for number in best]
        left = [each for number, each in enumerate(left) if number not in best]
    return ranked[: (len(ranked) + 1) // 2]
