"""Choose among spaces: which cluster, how many of its devices, which plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from conf.errors import InfeasiblePlan
from conf.units import GIBIBYTE
from sweeps.planner.objectives import (
    Objective,
    Training,
    longest_step_seconds,
    objective_value,
    required_dollars_per_second,
    total_dollars,
    total_hours,
)
from sweeps.planner.search import Found, search_space
from sweeps.planner.space import Space
from sweeps.planner.strategy import Strategy, strategies_of
from train_core.costs import StepTime
from train_core.costs.counts.flops import model_flops
from train_core.costs.price import price
from train_core.costs.terms import row_of


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan with its prediction.

    Attributes:
        worst_stage: the pipeline stage that needs most memory.
    """

    space: Space
    strategy: Strategy
    step_terms: StepTime
    step_seconds: float
    peak_memory_bytes: int
    worst_stage: int

    @property
    def model_flops_per_second_per_device(self) -> float:
        flops = model_flops(self.space.setting.model, self.space.global_batch_size)
        return flops / self.step_seconds / self.space.world_size

    @property
    def model_flops_utilization(self) -> float:
        return self.model_flops_per_second_per_device / self.space.setting.peak_flops_per_second


@dataclass(frozen=True, slots=True)
class Choice:
    """What a search of several spaces came to.

    Attributes:
        best: best first by the objective.
        best_of_each: the best of each space, best first by the objective.
        search_seconds: the whole search took so long.
    """

    num_strategies: int
    num_fitting: int
    num_feasible: int
    best: tuple[Candidate, ...]
    best_of_each: tuple[Candidate, ...]
    search_seconds: float


def choose(spaces: Sequence[Space], objective: Objective, training: Training, top: int) -> Choice:
    """The `top` best plans of all spaces.

    Raises:
        InfeasiblePlan: there is no plan, none fits, or none keeps the limits; says what comes closest.
        ConfigError: money was asked for and a cluster names no price.
    """
    start = time.perf_counter()
    founds = [search_space(space, top, longest_step_seconds(space, training)) for space in spaces]
    # The `top` best over all spaces are among the `top` fastest of each, because within one space every objective
    # grows with the step's time.
    ranked = sorted(
        (objective_value(objective, space, seconds), number, row)
        for number, (space, found) in enumerate(zip(spaces, founds, strict=True))
        for row, seconds in enumerate(found.step_seconds.tolist())
    )
    if not ranked:
        raise _nothing(spaces, founds, training)
    best = _candidates(spaces, founds, [(number, row) for _, number, row in ranked[:top]])
    best_of_each = _candidates(spaces, founds, [(number, row) for _, number, row in ranked if row == 0])
    return Choice(
        num_strategies=sum(found.num_strategies for found in founds),
        num_fitting=sum(found.num_fitting for found in founds),
        num_feasible=sum(found.num_feasible for found in founds),
        best=best,
        best_of_each=best_of_each,
        search_seconds=time.perf_counter() - start,
    )


def best_of(space: Space) -> Candidate | None:
    """The fastest plan of one space; None where no plan exists or none fits."""
    found = search_space(space, 1)
    return _priced(space, found, [0])[0] if found.num_feasible else None


def _candidates(
    spaces: Sequence[Space], founds: Sequence[Found], picked: Sequence[tuple[int, int]]
) -> tuple[Candidate, ...]:
    """The picked pairs of space and row as candidates, in the order in which they were picked."""
    # Plans are priced in columns, so all picked rows of a space are priced in one go and then put back in order.
    priced: dict[tuple[int, int], Candidate] = {}
    for number in {number for number, _ in picked}:
        rows = [row for of, row in picked if of == number]
        for row, candidate in zip(rows, _priced(spaces[number], founds[number], rows), strict=True):
            priced[number, row] = candidate
    return tuple(priced[number, row] for number, row in picked)


def _priced(space: Space, found: Found, rows: list[int]) -> list[Candidate]:
    assert found.best is not None
    # The search kept the step's time alone; the terms and the memory of the few plans that are shown are priced anew.
    plans = found.best.rows(slice(0, max(rows) + 1))
    prices = price(space.setting, plans)
    across = space.tensor_parallel_across_nodes
    strategies = strategies_of(plans, space.setting.model.num_layers, tensor_parallel_across_nodes=across)
    return [
        Candidate(
            space=space,
            strategy=strategies[row],
            step_terms=row_of(prices.step, row),
            step_seconds=float(prices.step_seconds[row]),
            peak_memory_bytes=int(prices.peak_memory_bytes[row]),
            worst_stage=int(prices.worst_stage[row]),
        )
        for row in rows
    ]


def pareto_front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that no other beats in both time and money, fastest first.

    Raises:
        ConfigError: a cluster names no price.
    """
    by_time = sorted(candidates, key=lambda candidate: (candidate.step_seconds, dollars_per_step(candidate)))
    # Going from fast to slow, a candidate is worth its extra time only if it is cheaper than all before it.
    front: list[Candidate] = []
    for candidate in by_time:
        if not front or dollars_per_step(candidate) < dollars_per_step(front[-1]):
            front.append(candidate)
    assert all(dollars_per_step(a) > dollars_per_step(b) for a, b in pairwise(front))
    return front


def dollars_per_step(candidate: Candidate) -> float:
    return required_dollars_per_second(candidate.space) * candidate.step_seconds


def _nothing(spaces: Sequence[Space], founds: Sequence[Found], training: Training) -> InfeasiblePlan:
    """The error that says why the search came back empty, and what comes closest."""
    # From the mildest cause to the worst: limits that are too tight, then memory, then no legal plan at all.
    fitting = [(space, found) for space, found in zip(spaces, founds, strict=True) if found.num_fitting]
    if fitting:
        return _limits_too_tight(fitting, training)
    legal = [(space, found) for space, found in zip(spaces, founds, strict=True) if found.num_strategies]
    if legal:
        space, found = min(legal, key=lambda pair: pair[1].smallest_bytes / pair[0].setting.cluster.device.memory_bytes)
        capacity = space.setting.cluster.device.memory_bytes
        return InfeasiblePlan(
            "cluster.device.memory_bytes",
            capacity,
            f"is too little for {space.setting.model.name} on {space.world_size} x {space.setting.cluster.device.name}:"
            f" of {found.num_strategies} plans the one that needs least takes {found.smallest_bytes / GIBIBYTE:.1f} GiB"
            f" per device of {capacity / GIBIBYTE:.1f} GiB",
            "Use more devices, another cluster, or pin fewer knobs.",
        )
    return _no_plan(spaces)


def _no_plan(spaces: Sequence[Space]) -> InfeasiblePlan:
    sizes = sorted({space.world_size for space in spaces})
    pinned = {name: value for space in spaces for name, value in space.pinned.items()}
    given = ", ".join(f"{name}={value}" for name, value in pinned.items())
    return InfeasiblePlan(
        "parallel.world_size",
        sizes[0] if len(sizes) == 1 else sizes,
        f"has no legal plan for {spaces[0].setting.model.name} and a batch of {spaces[0].global_batch_size} sequences"
        + (f" with {given}" if given else ""),
        "Pin fewer knobs, or change the number of devices or batch.global_batch_size.",
    )


def _limits_too_tight(fitting: Sequence[tuple[Space, Found]], training: Training) -> InfeasiblePlan:
    """Name the limit that even the fastest or the cheapest plan misses; else say that no plan keeps both limits."""
    hours = min(total_hours(training, found.fastest_seconds) or 0.0 for _, found in fitting)
    if training.deadline_hours is not None and hours > training.deadline_hours:
        return InfeasiblePlan(
            "deadline", training.deadline_hours, f"is met by no plan: the fastest takes {hours:,.1f} hours", _REMEDY
        )
    dollars = min(total_dollars(training, space, found.fastest_seconds) or 0.0 for space, found in fitting)
    if training.budget_dollars is not None and dollars > training.budget_dollars:
        return InfeasiblePlan(
            "budget", training.budget_dollars, f"is met by no plan: the cheapest costs ${dollars:,.2f}", _REMEDY
        )
    return InfeasiblePlan(
        "budget",
        training.budget_dollars,
        f"is met by no plan that also meets the deadline of {training.deadline_hours} hours: the cheapest of all costs"
        f" ${dollars:,.2f}, the fastest takes {hours:,.1f} hours",
        _REMEDY,
    )


_REMEDY = "Allow more, train fewer tokens, or offer other devices with --devices or --clusters."
