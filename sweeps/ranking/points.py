"""The measured points of a sweep, ranked by what it seeks: a point is what several trials measured, its runs.

The rate of a point is that of its median run, in the interval of the seconds of its step. Anything else is the mean of
the runs. A time spreads as far in all points, as a machine disturbs each by a factor; a loss, or a figure of a later
stage, as far as in points of like value. Where none was measured twice, nobody knows: there is neither an interval nor
a sure place.

Where a sweep seeks the rate, runs are repeats of one experiment. Where it seeks anything else, trials that differ in
their seed alone are runs of one point. What another version of the trainer measured is another point.

Losses are compared after equal training alone (`sweeps.points.objectives.require_comparable`). A program that ends well
before its last step, and what an earlier command left, are shown without a place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from conf.grouped import grouped
from conf.plan.experiment import Experiment
from conf.types.sweep_spec import RATE, Objective, is_of_time
from sweeps.points.objectives import cost, finite_ends, front, is_better_when_larger, measured_value
from sweeps.ranking.disturbed import (
    counted_runs,
    disturbances,
    has_measured_point,
    measured_groups,
    middle_of,
    of_other_models,
)
from sweeps.ranking.equal_training import trained_otherwise
from sweeps.ranking.intervals import (
    RepeatInterval,
    RepeatSpread,
    machine_noise,
    of_one_run,
    of_runs,
    overlap,
    places_by_bounds,
    pooled_spread,
    with_own_steps,
)
from sweeps.reading import TrialReading
from sweeps.search.axes.seen_points import SEED
from sweeps.trial import SweepRecord
from train_core.trial.measurement import Performance

DIVERGED = 1.5
"""A training whose loss ends so many times higher than it began has diverged, both as means of a tenth. Assumed."""
LIKE = 2.0
"""Losses, or figures, of which one is at most so many times the other are of like value. Assumed."""


@dataclass(frozen=True)
class MeasuredPoint:
    """One point and what its runs measured.

    Attributes:
        objectives: what it is ranked by.
        name: its label, without the seed where seeds are its runs.
        counted: the runs whose times count: the steady ones, where any is.
        spread: between runs of a point, of the first objective, or of the seconds of a step where that is the rate;
            None where nothing says how it spreads, or the point diverged.
        noise: the factor by which the peaks vary that were measured beside the runs; 1 where none were.
        on_front: no other point beats it in all objectives.
        diverged: a value of one of its runs is no number, or the loss that is sought ended far higher than it began.
        disturbed: what disturbed its runs, where none of them was steady, and its rate is sought; else empty.
        aside: why it has no place among the others, as of another model, or trained otherwise; else empty.
    """

    objectives: tuple[Objective, ...]
    name: str
    runs: tuple[TrialReading, ...]
    counted: tuple[TrialReading, ...]
    spread: RepeatSpread | None = None
    noise: float = 1.0
    on_front: bool = False
    diverged: bool = False
    disturbed: str = ""
    aside: str = ""

    @cached_property
    def middle(self) -> TrialReading:
        """The run whose step is shown: see `disturbed.middle_of`."""
        return middle_of(self.counted)

    @property
    def reading(self) -> TrialReading:
        """The trial to look at."""
        return self.middle if self.objectives == RATE else self.runs[0]

    @property
    def performance(self) -> Performance:
        assert self.middle.performance is not None
        return self.middle.performance

    @property
    def is_baseline(self) -> bool:
        return any(run.trial.is_baseline for run in self.runs)

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The value of each objective."""
        if self.objectives == RATE:
            return (self.performance.model_flops_per_second_per_device,)
        return tuple(fmean(self.drawn_values(objective)) for objective in self.objectives)

    def drawn_values(self, sought: Objective) -> list[float]:
        """What chance drew of an objective: where a program is told its seed, a loss is drawn once a seed.

        So is a figure that came out the same; one that did not, as of a server that was timed, varies by itself.
        """
        counted = self.counted if is_of_time(sought) else self.runs
        found = [(run, value) for run in counted if (value := measured_value(sought, run)) is not None]
        if is_of_time(sought) or not all(run.planned.trainer.is_told(SEED) for run in counted):
            return [value for _, value in found]
        by_loss = sought == "loss"
        draws = grouped(found, lambda each: (each[0].planned.training.seed, None if by_loss else each[1]))
        return [fmean(value for _, value in same) for same in draws.values()]

    @property
    def num_drawn(self) -> int:
        """How many values of the first objective chance drew."""
        return len(self.drawn_values(self.objectives[0]))

    @property
    def is_number(self) -> bool:
        """True if it came to a number in every objective."""
        return all(map(math.isfinite, self.values))

    @property
    def may_be_best(self) -> bool:
        """True if it did not diverge, is of the sweep's model, and was trained as the others were."""
        return not (self.diverged or self.aside)

    @property
    def seeds(self) -> frozenset[int]:
        return frozenset(run.planned.training.seed for run in self.runs)

    def of_seeds(self, seeds: Collection[int]) -> MeasuredPoint:
        """The point by the runs of these seeds alone, of which it has some; its interval is that of so few runs."""
        runs, counted = (
            tuple(run for run in each if run.planned.training.seed in seeds) for each in (self.runs, self.counted)
        )
        return replace(self, runs=runs, counted=counted or runs)

    @cached_property
    def seconds(self) -> RepeatInterval:
        """The interval of the seconds of a step, of a point that is ranked by its rate."""
        known = [run.performance for run in self.counted if run.performance]
        if self.spread is None or self.disturbed:
            slowest, fastest = (
                max(each.step_seconds_max for each in known),
                min(each.step_seconds_min for each in known),
            )
            return of_one_run(fastest, slowest, self.noise, len(known))
        steps = [seconds for run in self.counted for seconds in run.timed_seconds]
        return with_own_steps(of_runs([each.step_seconds for each in known], self.spread), steps)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """Of 95 % of the first value; None where nothing says how it spreads."""
        if self.objectives == RATE:
            work = self.performance.model_flops / self.performance.num_devices
            return work / self.seconds.high, work / self.seconds.low
        return self.spread.around(self.values[0], self.num_drawn) if self.spread else None

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval, or the value alone."""
        return self.interval or (self.values[0], self.values[0])

    def may_equal(self, other: MeasuredPoint) -> bool:
        """True if the intervals of the first value overlap, as far as they are known."""
        return overlap(self.bounds, other.bounds)


def measured_points(readings: Sequence[TrialReading]) -> list[MeasuredPoint]:
    """Every point by its rate, fastest per device first; those with disturbed runs alone after all others.

    Last come those of another model than the present configuration's.
    """
    return _ranked(RATE, [(runs[0].label, runs) for runs in measured_groups(readings)], readings)


def ranked_points(readings: Sequence[TrialReading]) -> list[MeasuredPoint]:
    """Those of the model that the sweep is about."""
    return [point for point in measured_points(readings) if not point.aside]


def ranking_of(readings: Sequence[TrialReading]) -> list[TrialReading]:
    """Those by their middle runs."""
    return [point.middle for point in ranked_points(readings)]


def sought_points(record: SweepRecord, readings: Sequence[TrialReading]) -> list[MeasuredPoint]:
    """The points by what the sweep seeks, best first; of several objectives those on the front before the others.

    A training that diverged comes after them, and last what has no place among the others.
    """
    if record.objective == RATE:
        return measured_points(readings)

    def name_of(reading: TrialReading) -> str:
        # Where nothing varies but the seed, every trial is a run of the one point.
        return record.labels.of(reading.trial.point, reading.planned, leave_out=SEED) or reading.planned.label

    measured = [each for each in readings if has_measured_point(each)]
    valued = [each for each in measured if all(measured_value(sought, each) is not None for sought in record.objective)]
    alike = grouped(valued, name_of).items()
    groups = [named for name, group in alike for named in _told_apart(name, group)]
    return _ranked(record.objective, groups, readings)


def _ranked(
    objectives: tuple[Objective, ...],
    groups: Sequence[tuple[str, Sequence[TrialReading]]],
    readings: Sequence[TrialReading],
) -> list[MeasuredPoint]:
    by_loss, of_time = "loss" in objectives, list(map(is_of_time, objectives))
    disturbed = disturbances(readings) if any(of_time) else {}
    points = list[MeasuredPoint]()
    for name, runs in groups:
        counted = tuple(counted_runs(runs, disturbed))
        # Of a disturbed run, nothing counts where only times are sought.
        kept = counted if all(of_time) and objectives != RATE else tuple(runs)
        why = disturbed.get(counted[0].trial.trial_id, "") if objectives == RATE else ""
        points.append(MeasuredPoint(objectives, name, kept, counted, disturbed=why))
    costs = [_costs(point) for point in points]
    diverged = [
        not all(map(math.isfinite, each)) or (by_loss and any(map(_has_diverged, point.runs)))
        for point, each in zip(points, costs, strict=True)
    ]
    asides = _asides(objectives, points, readings)
    has_place = [
        not (lost or aside or each.disturbed) for each, lost, aside in zip(points, diverged, asides, strict=True)
    ]
    placed = [number for number, each in enumerate(has_place) if each]
    best = {placed[number] for number in front([costs[number] for number in placed])}
    noise = machine_noise(run.performance for point in points for run in point.runs) or 1.0
    known = enumerate(zip(points, _spreads(points, diverged), diverged, asides, strict=True))
    ranked = [
        replace(point, spread=spread, noise=noise, on_front=number in best, diverged=lost, aside=aside)
        for number, (point, spread, lost, aside) in known
    ]
    return sorted(ranked, key=_order)


def _order(point: MeasuredPoint) -> tuple[bool, bool, bool, bool, tuple[float, ...]]:
    return bool(point.aside), point.diverged, bool(point.disturbed), not point.on_front, _costs(point)


def _costs(point: MeasuredPoint) -> tuple[float, ...]:
    costs = (cost(objective, value) for objective, value in zip(point.objectives, point.values, strict=True))
    return tuple(each if math.isfinite(each) else math.inf for each in costs)


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


def _has_diverged(reading: TrialReading) -> bool:
    """True if the last tenth of the training losses lies far above the first; a single step says little.

    What a script calls its loss may be anything, so that only one that is no number says so.
    """
    if reading.planned.trainer.is_script:
        return False
    losses = reading.performance.losses if reading.performance is not None else ()
    if not losses:
        return False
    first, last = finite_ends(losses)
    has_risen = bool(first and last) and 0 < DIVERGED * fmean(first) < fmean(last)
    return has_risen or not math.isfinite(losses[-1])


def _asides(
    objectives: Sequence[Objective], points: Sequence[MeasuredPoint], readings: Sequence[TrialReading]
) -> list[str]:
    """Why points have no place: what takes time is compared for one model, what is learned after equal training."""
    others = of_other_models(readings) if any(map(is_of_time, objectives)) else {}
    trained = dict[int, str]()
    if not all(map(is_of_time, objectives)):
        trained = trained_otherwise(dict(enumerate(point.runs for point in points)), by_loss="loss" in objectives)
    return [others.get(point.runs[0].trial.trial_id) or trained.get(number, "") for number, point in enumerate(points)]


def _spreads(points: Sequence[MeasuredPoint], diverged: Sequence[bool]) -> list[RepeatSpread | None]:
    """The spread of each point; None where nothing says how it spreads."""
    if not points:
        return []
    sought = points[0].objectives[0]
    if points[0].objectives == RATE:
        steady = [[run.performance for run in point.counted] for point in points if not point.disturbed]
        return [pooled_spread([[each.step_seconds for each in runs if each] for runs in steady])] * len(points)
    drawn = [[] if lost else point.drawn_values(sought) for point, lost in zip(points, diverged, strict=True)]
    repeated = [(fmean(runs), runs) for runs in drawn if len(runs) > 1]
    of_all = pooled_spread([runs for _, runs in repeated]) if is_of_time(sought) else None
    found = list[RepeatSpread | None]()
    for runs in drawn:
        spread = of_all if runs else None
        if runs and not is_of_time(sought):
            mean = fmean(runs)
            spread = pooled_spread([others for other, others in repeated if _are_alike(mean, other)])
        # Runs that came out the same, as without a seed, show no spread.
        found.append(spread if spread and spread.deviation else None)
    return found


def _are_alike(mean: float, other: float) -> bool:
    """True of values of the same sign and size, whose spread is a similar share of them."""
    return mean == other or (mean * other > 0 and 1 / LIKE <= mean / other <= LIKE)


def places(points: Sequence[MeasuredPoint]) -> list[str]:
    """The place of every point in its order, `=` where another may be as good; see `places_by_bounds`.

    Where nobody knows how a value spreads it has `?`, and every other may be as good. Of several objectives the place
    is the number in that order, as no interval ranks them. What diverged, is of another model or was measured by
    disturbed runs alone has no place, and takes nobody's.
    """
    has_place = [point.may_be_best and not point.disturbed for point in points]
    if points and len(points[0].objectives) > 1:
        return [str(number) if each else "" for number, each in enumerate(has_place, start=1)]
    is_up = bool(points) and is_better_when_larger(points[0].objectives[0])
    bounds = [point.bounds if is_up else (-point.bounds[1], -point.bounds[0]) for point in points]
    found = places_by_bounds([each if has else None for each, has in zip(bounds, has_place, strict=True)])
    placed = list(filter(None, found))
    if len(placed) > 1 and any(place and point.interval is None for place, point in zip(found, points, strict=True)):
        both = zip(found, points, strict=True)
        found = [place and f"{place.rstrip('=')}{'=' if point.interval else '?'}" for place, point in both]
    return found


def rivals_of_first(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """The other points whose interval overlaps that of the first, which is the best; all where that was disturbed."""
    return [each for each in points[1:] if not each.diverged and (points[0].disturbed or each.may_equal(points[0]))]


def best_measured(record: SweepRecord, readings: Sequence[TrialReading]) -> MeasuredPoint | None:
    """The best point by what the sweep seeks; None where no number was measured."""
    return next((point for point in sought_points(record, readings) if point.may_be_best), None)


def best_reading(record: SweepRecord, readings: Sequence[TrialReading]) -> TrialReading | None:
    best = best_measured(record, readings)
    return best.reading if best is not None else None


def best_first(record: SweepRecord, readings: Sequence[TrialReading]) -> list[TrialReading]:
    """The points that can be the best, each by its first trial, in the order of what the sweep seeks."""
    first = {each.trial.mark: each for each in reversed(readings) if not each.trial.repeat}
    best = (point.reading for point in sought_points(record, readings) if point.may_be_best)
    return [first.get(each.trial.mark, each) for each in best]
