"""The last words of a search of any axes: its best points, or the front of several objectives. All measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from conf.sweep_spec import Objective, SearchPlan
from conf.units import TERA
from sweeps.points.objectives import cost, front, unit_of
from sweeps.search.axes.seen_points import SeenPoint

MOST_SHOWN = 8


def best_points(plan: SearchPlan, seen: Sequence[SeenPoint]) -> list[str]:
    """A sentence each."""
    return list(_sentences(plan.objective, seen))


def _sentences(objectives: Sequence[Objective], seen: Sequence[SeenPoint]) -> Iterator[str]:
    ended = [each for each in seen if each.costs is not None and all(map(math.isfinite, each.costs))]
    if not ended:
        return
    best = [ended[number] for number in front([each.costs or () for each in ended])]
    best.sort(key=lambda each: each.costs or ())
    if len(objectives) == 1:
        yield f"Best of {len(ended)} measured points: {_point_text(best[0], objectives)}."
        return
    yield f"No other of {len(ended)} measured points beats these {len(best)} in {' and '.join(objectives)}:"
    yield from (f"  {_point_text(each, objectives)}" for each in best[:MOST_SHOWN])
    if len(best) > MOST_SHOWN:
        yield f"  and {len(best) - MOST_SHOWN} more."


def _with_unit(objective: Objective, value: float) -> str:
    if objective == "throughput":
        return f"{value / TERA:.4g} model TFLOPS per device"
    return f"{objective} {value:.4g} {unit_of(objective)}".rstrip()


def _point_text(each: SeenPoint, objectives: Sequence[Objective]) -> str:
    point = ", ".join(f"{key}={value}" for key, value in each.point.items()) or "the baseline"
    values = ", ".join(
        _with_unit(objective, cost(objective, value))
        for objective, value in zip(objectives, each.costs or (), strict=True)
    )
    num_seeds = sum(reading.performance is not None for reading in each.readings)
    seeds = f", the mean of {num_seeds} seeds" if num_seeds > 1 else ""
    return f"{point} ({values}{seeds})"
