"""The points of a sweep that seeks something else than the highest rate, ranked by what it seeks.

Trials that differ in their seed alone, and repeats, are runs of one point, whose mean counts; those that another
version of the trainer measured are another point. A time spreads as far in all points, as a machine disturbs each by a
factor (`sweeps.ranking.points`); a loss, or a figure of a later stage, as far as in points of like value. Where none
was measured twice, nobody knows: there is neither an interval nor a sure place. What is positive spreads by factors;
of anything else, deviations are shares of the mean.

Losses are compared after equal training alone (`sweeps.points.objectives.require_comparable`). A program that ends well
before its last step, and what an earlier command left, are shown without a place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from conf.grouped import grouped
from conf.plan.experiment import Experiment
from conf.types.sweep_spec import Objective, is_of_time
from sweeps.points.objectives import cost, finite_ends, front, is_better_when_larger, measured_value
from sweeps.ranking.disturbed import counted_runs, disturbances, has_measured_point, middle_of, of_other_models
from sweeps.ranking.equal_training import trained_otherwise
from sweeps.ranking.points import overlap, places_by_bounds, pooled_spread, ranked_points, ranking_of, t_quantile
from sweeps.reading import TrialReading
from sweeps.search.axes.seen_points import SEED
from sweeps.trial import SweepRecord

DIVERGED = 1.5
"""A training whose loss ends so many times higher than it began has diverged, both as means of a tenth. Assumed."""
LIKE = 2.0
"""Losses, or figures, of which one is at most so many times the other are of like value. Assumed."""
WIDEST = 100.0
"""A wider interval of a logarithm says no less, and its ends would be no numbers."""


class Run(NamedTuple):
    """A trial, and what it measured of each objective.

    Attributes:
        counts: for each objective, False of the times of a run that was disturbed, whose loss is as good as any.
    """

    reading: TrialReading
    values: tuple[float, ...]
    counts: tuple[bool, ...]


class ValueSpread(NamedTuple):
    """How far one run may lie from the value of its point, with 95 % confidence.

    Attributes:
        half: half of that interval: of the logarithm, or a share of the value.
    """

    half: float
    is_of_logarithm: bool

    def around(self, value: float, num_runs: int) -> tuple[float, float]:
        """The interval of a value that is the mean of so many runs."""
        half = self.half / math.sqrt(num_runs)
        if not self.is_of_logarithm:
            return value - half * _scale(value), value + half * _scale(value)
        factor = math.exp(min(half, WIDEST))
        return value / factor, value * factor


@dataclass(frozen=True)
class SoughtPoint:
    """One point, with what its runs measured.

    Attributes:
        name: its label without the seed, where that is enough.
        num_drawn: how many values of the first objective chance drew.
        spread: of the first value; None where nothing says how it spreads, or it diverged.
        on_front: no other point beats it in all objectives.
        diverged: a value of one of its runs is no number, or the loss that is sought ended far higher than it began.
        aside: how it was trained otherwise than the others, so that its loss has no place among theirs; else empty.
    """

    name: str
    runs: tuple[Run, ...]
    values: tuple[float, ...]
    num_drawn: int
    spread: ValueSpread | None
    on_front: bool
    diverged: bool
    aside: str

    @property
    def reading(self) -> TrialReading:
        """The trial to look at: its first run."""
        return self.runs[0].reading

    @property
    def middle(self) -> TrialReading:
        """The run whose rate and seconds of a step are the point's, as where points are ranked by their rate."""
        return middle_of([run.reading for run in self.runs if all(run.counts)] or [run.reading for run in self.runs])

    @property
    def is_number(self) -> bool:
        """True if it came to a number in every objective."""
        return all(map(math.isfinite, self.values))

    @property
    def has_place(self) -> bool:
        """True if it can be the best: it did not diverge, and was trained as the others were."""
        return not (self.diverged or self.aside)

    @property
    def told_no_loss(self) -> bool:
        """True of another program in whose log no step has a loss, of the kind that is sought, that is a number."""
        runs = [run.reading for run in self.runs]
        if all(each.planned.has_held_out_loss for each in runs):
            losses = [step.held_out_loss for each in runs for step in each.steps if step.held_out_loss is not None]
        else:
            losses = [loss for each in runs if each.performance for loss in each.performance.losses]
        is_other = not any(each.planned.trainer.is_own for each in runs)
        return is_other and not self.is_number and all(map(math.isnan, losses))

    @property
    def seeds(self) -> frozenset[int]:
        return frozenset(run.reading.planned.training.seed for run in self.runs)

    def of_seeds(self, seeds: Collection[int], objectives: Sequence[Objective]) -> SoughtPoint:
        """The point by the runs of these seeds alone, of which it has some; its interval is that of so few runs."""
        kept = tuple(run for run in self.runs if run.reading.planned.training.seed in seeds)
        num_drawn = len(_drawn_values(objectives[0], kept, 0))
        return replace(self, runs=kept, values=_means(objectives, kept), num_drawn=num_drawn)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of 95 % of the first value; None where nothing says how it spreads."""
        return self.spread.around(self.values[0], self.num_drawn) if self.spread else None

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval, or the value alone."""
        return self.interval or (self.values[0], self.values[0])

    def may_equal(self, other: SoughtPoint) -> bool:
        """True if the intervals of the first value overlap, as far as they are known."""
        return overlap(self.bounds, other.bounds)


def sought_points(record: SweepRecord, readings: Sequence[TrialReading]) -> list[SoughtPoint]:
    """The points that were measured: best first, of several objectives those on the front before the others.

    A training that diverged comes after them, and last what has no place among the others.
    """
    groups = _runs_by_point(record, readings)
    readings_of = {name: [run.reading for run in runs] for name, runs in groups.items()}
    means = {name: _means(record.objective, runs) for name, runs in groups.items()}
    costs = {name: _costs(record.objective, mean) for name, mean in means.items()}
    by_loss = "loss" in record.objective
    diverged = {name for name, each in costs.items() if not all(map(math.isfinite, each))}
    diverged |= {name for name, runs in readings_of.items() if by_loss and any(map(_has_diverged, runs))}
    aside = _asides(record, readings, readings_of)
    placed = [name for name in groups if name not in diverged and name not in aside]
    best = {placed[number] for number in front([costs[name] for name in placed])}
    sought = record.objective[0]
    kept = {name: _drawn_values(sought, runs, 0) for name, runs in groups.items() if name not in diverged}
    spreads = _spreads(sought, kept)

    def point(name: str) -> SoughtPoint:
        runs, places = tuple(groups[name]), (name in best, name in diverged, aside.get(name, ""))
        num_drawn = len(_drawn_values(sought, runs, 0))
        return SoughtPoint(name, runs, means[name], num_drawn, spreads.get(name), *places)

    return [
        point(name)
        for name in sorted(groups, key=lambda each: (each in aside, each in diverged, each not in best, costs[each]))
    ]


def _means(objectives: Sequence[Objective], runs: Sequence[Run]) -> tuple[float, ...]:
    return tuple(fmean(_drawn_values(objective, runs, number)) for number, objective in enumerate(objectives))


def _drawn_values(sought: Objective, runs: Sequence[Run], number: int) -> list[float]:
    """What chance drew of the objective of that number: where a program is told its seed, a loss is drawn once a seed.

    So is a figure that came out the same; one that did not, as of a server that was timed, varies by itself.
    """
    counted = [run for run in runs if run.counts[number]] or runs
    if is_of_time(sought) or not all(run.reading.planned.trainer.is_told(SEED) for run in counted):
        return [run.values[number] for run in counted]
    by_loss = sought == "loss"
    draws = grouped(counted, lambda run: (run.reading.planned.training.seed, None if by_loss else run.values[number]))
    return [fmean(run.values[number] for run in same) for same in draws.values()]


def sought_places(record: SweepRecord, points: Sequence[SoughtPoint]) -> list[str]:
    """The place of every point in its order, `=` where another may be as good; see `places_by_bounds`.

    Where nobody knows how a value spreads it has `?`, and every other may be as good. Of several objectives the place
    is the number in that order, as no interval ranks them. What diverged has no place.
    """
    if len(record.objective) > 1:
        return [str(number) if point.has_place else "" for number, point in enumerate(points, start=1)]
    placed = [point for point in points if point.has_place]
    if len(placed) == 1:
        return ["1" if point.has_place else "" for point in points]
    is_up = is_better_when_larger(record.objective[0])
    gains = [point.bounds if is_up else (-point.bounds[1], -point.bounds[0]) for point in placed]
    places = dict(zip((point.name for point in placed), places_by_bounds(gains), strict=True))
    if any(point.interval is None for point in placed):
        marks = {point.name: "=" if point.interval else "?" for point in placed}
        places = {name: f"{place.rstrip('=')}{marks[name]}" for name, place in places.items()}
    return [places.get(point.name, "") for point in points]


def _has_diverged(reading: TrialReading) -> bool:
    """True if the last tenth of the training losses lies far above the first; a single step says little."""
    losses = reading.performance.losses if reading.performance is not None else ()
    if not losses:
        return False
    first, last = finite_ends(losses)
    has_risen = bool(first and last) and 0 < DIVERGED * fmean(first) < fmean(last)
    return has_risen or not math.isfinite(losses[-1])


def _costs(objectives: Sequence[Objective], values: Sequence[float]) -> tuple[float, ...]:
    costs = (cost(objective, value) for objective, value in zip(objectives, values, strict=True))
    return tuple(each if math.isfinite(each) else math.inf for each in costs)


def _runs_by_point(record: SweepRecord, readings: Sequence[TrialReading]) -> dict[str, list[Run]]:
    """Group the runs by point; of a disturbed one nothing of time counts, unless its point has no others."""
    of_time = [is_of_time(objective) for objective in record.objective]
    disturbed = disturbances(readings) if any(of_time) else {}

    def name_of(reading: TrialReading) -> str:
        # Where nothing varies but the seed, every trial is a run of the one point.
        return record.labels.of(reading.trial.point, reading.planned, leave_out=SEED) or reading.planned.label

    groups = grouped((each for each in readings if has_measured_point(each)), name_of)
    points = dict(named for name, group in groups.items() for named in _told_apart(name, group))
    if all(of_time):
        points = {name: counted_runs(point, disturbed) for name, point in points.items()}
    runs = {name: _measured_runs(record, point, disturbed) for name, point in points.items()}
    return {name: found for name, found in runs.items() if found}


def _told_apart(name: str, alike: Sequence[TrialReading]) -> Iterator[tuple[str, list[TrialReading]]]:
    """The points among trials whose labels differ in the seed alone: experiments and trainers may differ in more.

    Where the seeds alone told two experiments apart, each is called by the whole label of its first run; where only
    the code of the trainer does, all but the newest say so.
    """
    has_seeds = len({reading.trial.mark for reading in alike}) > 1
    points: dict[tuple[str, str], list[TrialReading]] = {}
    for reading in alike:
        mark = _with_seed_zero(reading.planned).fingerprint if has_seeds else reading.trial.mark
        points.setdefault((mark, reading.code), []).append(reading)
    newest = max(alike, key=lambda each: each.measurement.started if each.measurement else 0.0).code
    is_one_experiment = len({mark for mark, _ in points}) == 1
    for (_, code), runs in points.items():
        by_code = name if code == newest else f"{name} (code {code[:4]})"
        yield (by_code if is_one_experiment else runs[0].label), runs


def _with_seed_zero(experiment: Experiment) -> Experiment:
    return experiment.model_copy(update={"training": experiment.training.model_copy(update={"seed": 0})})


def _measured_runs(record: SweepRecord, readings: Sequence[TrialReading], disturbed: Collection[str]) -> list[Run]:
    runs = list[Run]()
    for reading in readings:
        found = (measured_value(objective, reading) for objective in record.objective)
        values = tuple(value for value in found if value is not None)
        if len(values) == len(record.objective):
            is_steady = reading.trial.trial_id not in disturbed
            runs.append(Run(reading, values, tuple(is_steady or not is_of_time(each) for each in record.objective)))
    return runs


def _spreads(objective: Objective, values: Mapping[str, Sequence[float]]) -> dict[str, ValueSpread]:
    """The spread of each point by its name; without those of which nothing says how they spread."""
    repeated = [(fmean(runs), runs) for runs in values.values() if len(runs) > 1]
    if is_of_time(objective):
        found = dict.fromkeys(values, _pooled([runs for _, runs in repeated]))
    else:
        means = {name: fmean(runs) for name, runs in values.items()}
        found = {
            name: _pooled([runs for other, runs in repeated if _are_alike(mean, other)]) for name, mean in means.items()
        }
    return {name: spread for name, spread in found.items() if spread}


def _pooled(points: Sequence[Sequence[float]]) -> ValueSpread | None:
    by_log = all(value > 0 for runs in points for value in runs)
    spread = pooled_spread([list(map(math.log, runs)) for runs in points]) if by_log else pooled_spread(points, _scale)
    if spread is None or not spread.deviation:  # runs that came out the same, as without a seed, show no spread
        return None
    return ValueSpread(t_quantile(spread.freedom) * spread.deviation, by_log)


def _are_alike(mean: float, other: float) -> bool:
    """True of values of the same sign and size, whose spread is a similar share of them."""
    return mean == other or (mean * other > 0 and 1 / LIKE <= mean / other <= LIKE)


def _scale(mean: float) -> float:
    """What a deviation is a share of: the mean, and of a mean of 0, which has no shares, 1."""
    return abs(mean) or 1.0


class BestPoint(NamedTuple):
    """The best point by what the sweep seeks: its first trial, what it measured of each objective, its middle run."""

    reading: TrialReading
    values: tuple[float, ...]
    middle: TrialReading


def best_reading(record: SweepRecord, readings: Sequence[TrialReading]) -> TrialReading | None:
    best = best_measured(record, readings)
    return best.reading if best is not None else None


def best_first(record: SweepRecord, readings: Sequence[TrialReading]) -> list[TrialReading]:
    """The points that have a place, each by its first trial, in the order of what the sweep seeks."""
    if record.seeks_rate:
        best = ranking_of(readings)
    else:
        best = [point.reading for point in sought_points(record, readings) if point.has_place]
    first = {each.trial.mark: each for each in reversed(readings) if not each.trial.repeat}
    return [first.get(each.trial.mark, each) for each in best]


def best_measured(record: SweepRecord, readings: Sequence[TrialReading]) -> BestPoint | None:
    """The best point; None where no number was measured."""
    if record.seeks_rate:
        return next((BestPoint(point.middle, (point.rate,), point.middle) for point in ranked_points(readings)), None)
    placed = (point for point in sought_points(record, readings) if point.has_place)
    return next((BestPoint(point.reading, point.values, point.middle) for point in placed), None)


def _asides(
    record: SweepRecord, readings: Sequence[TrialReading], points: Mapping[str, Sequence[TrialReading]]
) -> dict[str, str]:
    """Why points have no place: what takes time is compared for one model, what is learned after equal training."""
    others = of_other_models(readings) if any(map(is_of_time, record.objective)) else {}
    by_point = {name: others.get(runs[0].trial.trial_id) for name, runs in points.items()}
    aside = {name: why for name, why in by_point.items() if why}
    if all(map(is_of_time, record.objective)):
        return aside
    return trained_otherwise(points, by_loss="loss" in record.objective) | aside
