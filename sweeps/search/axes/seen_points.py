"""The points of a sweep as a search sees them: each with its trials, one for every seed, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from conf.schema import Value
from conf.sweep_spec import Objective
from conf.tree import Tree, value_at
from sweeps.points.axes import Point
from sweeps.points.objectives import cost, measured_value
from sweeps.reading import TrialReading
from train_core.measurement import Outcome

SEED = "training.seed"
IN_FLIGHT = (Outcome.PENDING, Outcome.RUNNING)
PointKey = frozenset[tuple[str, Value]]


@dataclass(frozen=True)
class SeenPoint:
    """A point that was tried.

    Attributes:
        point: without its seed.
        readings: its trials, one for each seed, in their order.
        costs: the mean over the seeds that have ended, for each objective, the smaller the better; None before the
            first has ended.
    """

    point: Point
    readings: tuple[TrialReading, ...]
    costs: tuple[float, ...] | None

    @property
    def key(self) -> PointKey:
        return point_key(self.point)

    @property
    def is_in_flight(self) -> bool:
        return any(reading.outcome in IN_FLIGHT or reading.awaits_figures for reading in self.readings)

    def ended_as(self, outcome: Outcome) -> bool:
        return any(reading.outcome is outcome for reading in self.readings)


def point_key(point: Mapping[str, Value]) -> PointKey:
    """Equal for equal points, whatever the order of their keys."""
    return frozenset(point.items())


def seen_points(trials: Sequence[TrialReading], objectives: Sequence[Objective]) -> list[SeenPoint]:
    """The points of all trials that were chosen, in the order in which each was tried first."""
    groups: dict[PointKey, list[TrialReading]] = {}
    for reading in trials:
        if reading.outcome is not None:
            groups.setdefault(point_key(without_seed(reading.trial.point)), []).append(reading)
    return [
        SeenPoint(without_seed(readings[0].trial.point), tuple(readings), _costs(readings, objectives))
        for readings in groups.values()
    ]


def without_seed(point: Mapping[str, Value]) -> Point:
    return {key: value for key, value in point.items() if key != SEED}


def with_seed(point: Point, number: int, tree: Tree) -> Point:
    """The point at its seed of this number; the first is the configuration's, and needs no word."""
    first = value_at(tree, SEED)
    assert isinstance(first, int)
    return {**point, SEED: first + number} if number else point


def _costs(readings: Sequence[TrialReading], objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    values = [[measured_value(objective, reading) for reading in readings] for objective in objectives]
    known = [[value for value in each if value is not None] for each in values]
    if not all(known):
        return None
    means = (cost(objective, fmean(each)) for objective, each in zip(objectives, known, strict=True))
    # A training that diverged is worse than any other, and no sum goes on from NaN.
    return tuple(mean if math.isfinite(mean) else math.inf for mean in means)
