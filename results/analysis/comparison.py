"""Two sweeps beside each other: the points that both measured, and what else differs between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from conf.plan.experiment import Experiment
from conf.types.sweep_spec import RATE, Objective
from conf.units import count_of
from sweeps.labels import Labels, distinct_names
from sweeps.ranking.equal_training import trained_otherwise
from sweeps.ranking.points import MeasuredPoint, measured_points, sought_points
from sweeps.reading import TrialReading
from sweeps.search.axes.seen_points import SEED
from sweeps.sweep import Sweep
from train_core.trial.measurement import Performance


@dataclass(frozen=True)
class Side:
    """One of the two sweeps."""

    name: str
    sweep: Sweep
    results: Sequence[TrialReading]


@dataclass(frozen=True)
class ComparedPoint:
    """A point that both sweeps measured.

    Attributes:
        before, after: by the runs of the seeds that both have, where seeds are runs and they have any in common.
        why_not: why the two say nothing about each other; empty where they do.
        leaves_seeds_out: a side has runs of other seeds too.
    """

    label: str
    before: MeasuredPoint
    after: MeasuredPoint
    why_not: str
    leaves_seeds_out: bool

    @property
    def performances(self) -> tuple[Performance, Performance]:
        return self.before.performance, self.after.performance

    @property
    def ratio(self) -> float:
        """The factor from the first sweep's tokens per second to the second's."""
        before, after = self.performances
        return after.tokens_per_second / before.tokens_per_second

    @property
    def ratio_bounds(self) -> tuple[float, float]:
        """The same by the slowest and the fastest timed steps of both."""
        before, after = self.performances
        tokens = self.ratio * after.step_seconds / before.step_seconds  # of one step over those of the other
        return (
            tokens * before.step_seconds_min / after.step_seconds_max,
            tokens * before.step_seconds_max / after.step_seconds_min,
        )

    @property
    def is_clearly_other_speed(self) -> bool:
        """True if even the bounds of the ratio say which side is faster: the timed steps do not overlap."""
        low, high = self.ratio_bounds
        return low > 1 or high < 1

    @property
    def is_clear(self) -> bool | None:
        """True if the intervals of what is sought do not overlap; None where a side has none."""
        if self.before.interval is None or self.after.interval is None:
            return None
        return not self.before.may_equal(self.after)


@dataclass(frozen=True)
class SweepComparison:
    """Two sweeps, the first of which is called the one before, whatever they differ in."""

    objectives: tuple[Objective, ...]
    points: tuple[ComparedPoint, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    @property
    def comparable(self) -> list[ComparedPoint]:
        return [point for point in self.points if not point.why_not]

    @property
    def mean_ratio(self) -> float | None:
        logarithms = [math.log(point.ratio) for point in self.comparable]
        return math.exp(fmean(logarithms)) if logarithms else None


def compare_sweeps(before: Side, after: Side, objectives: tuple[Objective, ...] = RATE) -> SweepComparison:
    """Pair the measured points of two sweeps by what sets them apart in either, in the ranking of the first.

    Args:
        objectives: what both seek, or the rate, which every sweep measures.
    """
    labels = joint_labels(before.results, after.results)
    first, second = (_points_by_label(side, objectives, labels) for side in (before, after))
    points = tuple(_pair(label, point, second[label]) for label, point in first.items() if label in second)
    return SweepComparison(
        objectives,
        points,
        tuple(label for label in first if label not in second),
        tuple(label for label in second if label not in first),
    )


def joint_labels(before: Sequence[TrialReading], after: Sequence[TrialReading]) -> Labels:
    """Return labels for the trials of both, by what varies within one of them: a difference between them is no name."""
    sides = [[(each.trial.point, each.experiment) for each in side] for side in (before, after)]
    return Labels([*sides[0], *sides[1]], dict.fromkeys(key for side in sides for key in Labels(side).names))


def _points_by_label(side: Side, objectives: tuple[Objective, ...], labels: Labels) -> dict[str, MeasuredPoint]:
    """The points by their label; later namesakes, as of other code, are numbered."""
    points = measured_points(side.results) if objectives == RATE else sought_points(side.sweep.record, side.results)
    order = {reading.name: number for number, reading in enumerate(side.results)}
    in_order = sorted(points, key=lambda point: order[point.runs[0].name])
    names = distinct_names([joint_label(point, labels) for point in in_order])
    named = {point.runs[0].name: name for point, name in zip(in_order, names, strict=True)}
    return {named[point.runs[0].name]: point for point in points}


def joint_label(point: MeasuredPoint, labels: Labels) -> str:
    """The name of a point, without the seed where seeds are its runs."""
    planned = point.reading.planned
    seed = "" if point.objectives == RATE else SEED
    return labels.of(point.reading.trial.point, planned, leave_out=seed) or planned.label


def _pair(label: str, before: MeasuredPoint, after: MeasuredPoint) -> ComparedPoint:
    lengths = trained_otherwise({"A": before.runs[:1], "B": after.runs[:1]}) if "loss" in before.objectives else {}
    trained = [f"{side} was trained {how}" for side, how in lengths.items()]
    why_not = "; ".join(filter(None, (why_incomparable(before.reading, after.reading), *trained)))
    common = before.seeds & after.seeds
    others = before.objectives != RATE and bool(common) and before.seeds != after.seeds
    one, other = (point.of_seeds(common) if others else point for point in (before, after))
    return ComparedPoint(label, one, other, why_not, others)


def why_incomparable(before: TrialReading, after: TrialReading) -> str:
    """The reason why two measurements of one layout say nothing about each other; empty if they do."""
    first, second = before.experiment, after.experiment
    assert first is not None
    assert second is not None
    differing = [f"{name}: {one} and {other}" for name, one, other in _conditions(first, second) if one != other]
    if not differing and first.model != second.model:
        differing = ["the models have one name and other sizes"]
    if before.performance and after.performance and before.performance.flops_formula != after.performance.flops_formula:
        differing.append("FLOPs are counted by other formulas")
    return "; ".join(differing)


def _conditions(first: Experiment, second: Experiment) -> Iterator[tuple[str, str, str]]:
    """The conditions that must be equal in both: name and two values. Cluster and software are what is compared."""
    yield "model", first.model.name, second.model.name
    yield "precision", first.precision.dtype, second.precision.dtype
    yield "matmul recipe", str(first.precision.matmul_recipe), str(second.precision.matmul_recipe)
    yield "dropout", str(first.training.dropout), str(second.training.dropout)
    yield "devices", str(first.parallel.world_size), str(second.parallel.world_size)


def differences(before: Sequence[TrialReading], after: Sequence[TrialReading]) -> list[tuple[str, str, str]]:
    """Name and both values of what was not the same: cluster, machine, software, code."""
    first, second = dict(_circumstances(before)), dict(_circumstances(after))
    return [(name, first[name], second[name]) for name in first if first[name] != second[name]]


def _circumstances(results: Sequence[TrialReading]) -> Iterator[tuple[str, str]]:
    """Yield the circumstances under which the trials of a sweep were measured, each with all its values."""
    experiments = [reading.experiment for reading in results if reading.experiment and reading.performance]
    environments = [r.measurement.environment for r in results if r.measurement and r.measurement.environment]
    yield "model", _distinct(each.model.name for each in experiments)
    yield "cluster", _distinct(each.cluster.name for each in experiments)
    yield "device by the configuration", _distinct(each.cluster.device.name for each in experiments)
    yield "trainer", _distinct(each.trainer.name for each in experiments)
    yield "data", _distinct(each.data.source for each in experiments)
    yield "host", _distinct(each.hostname for each in environments)
    yield "device", _distinct(f"{each.device}, {count_of(each.num_cores, 'core')}" for each in environments)
    yield "backend", _distinct(each.backend for each in environments)
    yield "torch", _distinct(each.torch_version for each in environments)
    yield "Python", _distinct(each.python_version for each in environments)
    yield "git", _distinct(each.git_sha for each in environments)


def _distinct(texts: Iterator[str]) -> str:
    return "; ".join(dict.fromkeys(texts)) or "-"
