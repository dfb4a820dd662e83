"""The points of a sweep as a search sees them: each with its trials, one for every seed, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from conf.compose.tree import PARAMS, Tree, value_at
from conf.grouped import grouped
from conf.types.schema import Value
from conf.types.sweep_spec import Objective
from conf.units import TERA
from sweeps.points.axes import Point
from sweeps.points.objectives import cost, front, measured_value, unit_of
from sweeps.reading import TrialReading
from train_core.trial.measurement import LIVE, Outcome

SEED = "training.seed"
PointKey = frozenset[tuple[str, Value]]


@dataclass(frozen=True)
class SeenPoint:
    """A point that was tried, without its seed, and its trials, one for each seed, in their order.

    Attributes:
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
        return any(reading.outcome in LIVE or reading.awaits_figures for reading in self.readings)

    def ended_as(self, outcome: Outcome) -> bool:
        return any(reading.outcome is outcome for reading in self.readings)


def point_key(point: Mapping[str, Value]) -> PointKey:
    """Equal for equal points, whatever the order of their keys."""
    return frozenset(point.items())


def seen_points(trials: Sequence[TrialReading], objectives: Sequence[Objective]) -> list[SeenPoint]:
    """The points of all trials that were chosen, in the order in which each was tried first."""
    groups = grouped((each for each in trials if each.outcome is not None), key_without_seed)
    return [
        SeenPoint(without_seed(readings[0].trial.point), tuple(readings), _costs(readings, objectives))
        for readings in groups.values()
    ]


def key_without_seed(reading: TrialReading) -> PointKey:
    return point_key(without_seed(reading.trial.point))


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


MOST_SHOWN = 8


def best_points(objectives: Sequence[Objective], seen: Sequence[SeenPoint]) -> Iterator[str]:
    """Sentences on the points that no other measured one beats."""
    ended = [each for each in seen if each.costs is not None and all(map(math.isfinite, each.costs))]
    if not ended:
        return
    best = [ended[number] for number in front([each.costs or () for each in ended])]
    best.sort(key=lambda each: each.costs or ())
    if len(objectives) == 1:
        yield f"Best of {len(ended)} measured points: {_point_text(best[0], objectives)}."
        return
    these = "this one" if len(best) == 1 else f"these {len(best)}"
    yield f"No other of {len(ended)} measured points beats {these} in {' and '.join(objectives)}:"
    yield from (f"  {_point_text(each, objectives)}" for each in best[:MOST_SHOWN])
    if len(best) > MOST_SHOWN:
        yield f"  and {len(best) - MOST_SHOWN} more."


def _with_unit(objective: Objective, value: float, readings: Sequence[TrialReading]) -> str:
    if objective == "throughput":
        return f"{value / TERA:.4g} model TFLOPS per device"
    return f"{objective} {value:.4g} {unit_of(objective, readings)}".rstrip()


def _point_text(each: SeenPoint, objectives: Sequence[Objective]) -> str:
    point = ", ".join(f"{key.removeprefix(PARAMS)}={value}" for key, value in each.point.items()) or "the baseline"
    values = ", ".join(
        _with_unit(objective, cost(objective, value), each.readings)
        for objective, value in zip(objectives, each.costs or (), strict=True)
    )
    num_seeds = sum(reading.performance is not None for reading in each.readings)
    seeds = f", the mean of {num_seeds} seeds" if num_seeds > 1 else ""
    return f"{point} ({values}{seeds})"
