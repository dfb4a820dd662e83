"""Choose among spaces: which cluster, how many of its devices, which plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from conf.compose.settings import Settings
from conf.errors import InfeasiblePlan
from conf.overrides import value_text
from conf.plan.knobs import KNOB
from conf.plan.setup import Setup
from conf.plan.setup_parts import SetupParts
from conf.units import GIBIBYTE, count_of, gain_of
from costs import Estimate, StepTime, estimates
from costs.counts.flops import model_flops
from costs.price import price, price_step
from costs.setting import Floats, Plans, Setting
from costs.terms import row_of
from costs.work import work_of
from sweeps.confidence import Interval, interval_of
from sweeps.planner.choosing.objectives import (
    BETTER,
    PlanObjective,
    Training,
    longest_step_seconds,
    objective_value,
    required_dollars_per_second,
    total_dollars,
    total_hours,
)
from sweeps.planner.choosing.pruned_search import Prospects
from sweeps.planner.plans.plainness import DEPARTURE_SHARE, MOST_COUNTED, UNLIKELY, departures
from sweeps.planner.plans.space import Space
from sweeps.planner.plans.strategy import Strategy, strategies_of
from sweeps.planner.plans.whole_space import Found, Ranked, geometric_mean, search_space
from sweeps.practice import stated_practice

MOST_SEARCHED_WHOLE = 16
"""With more spaces than these, whole families are left out by their bounds. With fewer, the memory of every plan is
priced, which counts those that fit, and bounds spare times alone."""

HEDGED_MORE = 0.001
"""A plan whose price hangs so much more on the ports of rings than another's is said to do so."""

HINTS = {
    "parallel.tensor_parallel_size": "Use a divisor of heads, query groups, feed-forward width, vocabulary, devices and"
    " (without parallel.tensor_parallel_across_nodes=true) a node's devices.",
    "parallel.pipeline_parallel_size": "Use a divisor of the devices, up to the number of layers.",
    "parallel.expert_parallel_size": "Use a divisor of the model's experts and of the ranks that hold some.",
    "batch.micro_batch_size": "Use a divisor of batch.global_batch_size.",
}
"""What a knob has to be that leaves no plan although it is the only one that is pinned."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan with its prediction; the worst stage is the one that needs most memory.

    Attributes:
        hedged_seconds: the geometric mean of the step as declared and with rings of one port, where nobody measured how
            many they get.
        departures: in words, what it has that plainer plans do without.
    """

    space: Space
    strategy: Strategy
    step_terms: StepTime
    step_seconds: float
    hedged_seconds: float
    peak_memory_bytes: int
    worst_stage: int
    departures: tuple[str, ...]

    @property
    def counted_seconds(self) -> float:
        """What the step counts as, with its departures from plain plans."""
        return self.hedged_seconds * (1 + DEPARTURE_SHARE * len(self.departures))

    @property
    def model_flops_per_second_per_device(self) -> float:
        flops = model_flops(self.space.setting.model, self.space.global_batch_size)
        return flops / self.step_seconds / self.space.world_size

    @property
    def model_flops_utilization(self) -> float:
        return self.model_flops_per_second_per_device / self.space.setting.peak_flops_per_second

    @property
    def is_likely(self) -> bool:
        """True if it is likely to fit, by what predicted memory is off."""
        return self.peak_memory_bytes <= self.space.odds.room_bytes(self.space.setting.cluster.device.memory_bytes)

    @property
    def fit_likelihood(self) -> float:
        return self.space.odds.likelihood(self.peak_memory_bytes, self.space.setting.cluster.device.memory_bytes)

    @property
    def odds_in_words(self) -> str:
        return self.space.odds.in_words(self.peak_memory_bytes, self.space.setting.cluster.device.memory_bytes)


@dataclass(frozen=True, slots=True)
class Choice:
    """The result of a search of several spaces.

    Attributes:
        best: the best plans, best first by the objective with what departures count (`plans.plainness`).
        families: the best plan of each family (sizes, devices and cluster), likewise.
        family_values: what the objective alone says of the best plan of each of them, but of those far behind.
        fastest: the best plan by the objective alone.
        crowded: the plan that is better than the first one on its devices and leaves too little memory free, if any.
        none_likely: no plan is likely to fit, so that those are chosen among that fit on paper.
        num_left_out: families that were not priced, because their bounds tell that they can be none of the best; then
            the numbers of plans are of those that were.
        best_of_each: the best of each space, best first by the objective; of many spaces those that others do not beat
            in time and money, and some more.
        search_seconds: the whole search took so long.
    """

    objective: PlanObjective
    num_strategies: int
    num_fitting: int
    num_feasible: int
    best: tuple[Candidate, ...]
    families: tuple[Candidate, ...]
    num_families: int
    family_values: tuple[float, ...]
    num_left_out: int
    best_of_each: tuple[Candidate, ...]
    fastest: Candidate
    crowded: Candidate | None
    none_likely: bool
    search_seconds: float


def choose_plans(
    spaces: Sequence[Space], objective: PlanObjective, training: Training, top: int, *, each: bool = False
) -> Choice:
    """The `top` best families and plans of all spaces; with `each`, too, the best of each that may be on the front.

    Raises:
        InfeasiblePlan: there is no plan, none fits, or none keeps the limits; says what comes closest.
        ConfigError: money was asked for and a cluster names no price.
    """
    start = time.perf_counter()
    for space in spaces if objective == "cost" or each else ():
        required_dollars_per_second(space)  # a missing price is refused before seconds go into a search
    if each and len(spaces) > MOST_SEARCHED_WHOLE:  # a front is of prices as declared, and so are its limits
        spaces = [replace(space, as_declared=True) for space in spaces]
    longest = [longest_step_seconds(space, training) for space in spaces]
    founds, num_left_out = _search_all(spaces, objective, top, longest)
    none_likely = not any(found.num_fitting for found in founds) and any(space.asks_likely for space in spaces)
    if none_likely:
        spaces = [space.on_paper() for space in spaces]
        founds, num_left_out = _search_all(spaces, objective, top, longest)
    best = _best_first(objective, spaces, [found.best for found in founds])
    if not best:
        raise _empty_error(spaces, founds, training)
    families = _best_first(objective, spaces, [found.families for found in founds])
    is_pruned = len(spaces) > MOST_SEARCHED_WHOLE
    number = best[0].number
    space = spaces[number]
    # Families that were left out by their bounds may hold what leaves too little memory free.
    searched = search_space(space, 1, longest[number]) if is_pruned and space.headroom_bytes else founds[number]
    firsts = _on_front(spaces, longest) if each and is_pruned else [found.best for found in founds]
    return Choice(
        objective,
        num_strategies=sum(found.num_strategies for found in founds),
        num_fitting=sum(found.num_fitting for found in founds),
        num_feasible=sum(found.num_feasible for found in founds),
        best=_candidates(spaces, best[:top]),
        families=_candidates(spaces, families[:top]),
        num_families=sum(found.num_families for found in founds),
        family_values=tuple(objective_value(objective, spaces[one.number], one.step_seconds) for one in families),
        num_left_out=num_left_out,
        best_of_each=_candidates(spaces, [one for one in _best_first(objective, spaces, firsts) if one.is_first]),
        fastest=_fastest(objective, spaces, [found.fastest for found in founds]),
        crowded=price_plans(space, searched.crowded)[0] if searched.crowded else None,
        none_likely=none_likely,
        search_seconds=time.perf_counter() - start,
    )


def _fastest(objective: PlanObjective, spaces: Sequence[Space], of_spaces: Sequence[Ranked | None]) -> Candidate:
    """The best of these by the objective alone."""
    ranked = [(space, each) for space, each in zip(spaces, of_spaces, strict=True) if each is not None]
    space, first = min(ranked, key=lambda pair: objective_value(objective, pair[0], float(pair[1].step_seconds[0])))
    return price_plans(space, first)[0]


def _search_all(
    spaces: Sequence[Space], objective: PlanObjective, top: int, longest: Sequence[float]
) -> tuple[list[Found], int]:
    """Search every space; return what was found, and how many families were left out: none of few spaces."""
    if len(spaces) <= MOST_SEARCHED_WHOLE:
        return [search_space(space, top, seconds) for space, seconds in zip(spaces, longest, strict=True)], 0
    return Prospects(spaces).search(range(len(spaces)), objective, top, longest)


def _on_front(spaces: Sequence[Space], longest: Sequence[float]) -> list[Ranked | None]:
    """The best plan of each space that no other beats in both time and money; of some others, too.

    Numbers of devices with many factors of two come first, since their plans are good and rule out most of the others.
    """
    prospects = Prospects(spaces)
    firsts: list[Ranked | None] = [None] * len(spaces)
    known: list[tuple[float, float]] = []  # seconds and dollars of a step
    for number in sorted(
        range(len(spaces)), key=lambda number: -(spaces[number].world_size & -spaces[number].world_size)
    ):
        rate = required_dollars_per_second(spaces[number])
        below = min((max(seconds, dollars / rate) for seconds, dollars in known), default=inf)
        (found,), _ = prospects.search([number], "time", 1, longest, below * MOST_COUNTED)
        if found.best:
            firsts[number] = found.best.first(1)
            seconds = float(found.best.step_seconds[0])
            known.append((seconds, seconds * rate))
    return firsts


def best_of(spaces: Sequence[Space]) -> list[Candidate | None]:
    """The best plan of each space; None where no plan exists or none fits."""
    prospects = Prospects(spaces)
    alone = [prospects.search([number], "time", 1, [inf] * len(spaces))[0][0] for number in range(len(spaces))]
    return [
        price_plans(space, found.best.first(1))[0]
        if found.best
        else (best_of([space.on_paper()])[0] if space.asks_likely else None)
        for space, found in zip(spaces, alone, strict=True)
    ]


class _Picked(NamedTuple):
    """A plan of one of the spaces, in the order of the objective: the space's number, and its row among those found."""

    value: float
    number: int
    row: int
    ranked: Ranked

    @property
    def is_first(self) -> bool:
        return self.row == 0

    @property
    def step_seconds(self) -> float:
        return float(self.ranked.step_seconds[self.row])


def _best_first(objective: PlanObjective, spaces: Sequence[Space], of_spaces: Sequence[Ranked | None]) -> list[_Picked]:
    """The plans that were found in each space, all together.

    The best over all spaces are among the best of each, because within one space every objective grows with the step's
    time.
    """
    picked = [
        _Picked(objective_value(objective, space, seconds), number, row, ranked)
        for number, (space, ranked) in enumerate(zip(spaces, of_spaces, strict=True))
        if ranked is not None
        for row, seconds in enumerate(ranked.counted_seconds.tolist())
    ]
    return sorted(picked, key=lambda one: one[:3])


def _candidates(spaces: Sequence[Space], picked: Sequence[_Picked]) -> tuple[Candidate, ...]:
    """The picked plans as candidates, in the order in which they were picked."""
    # Plans are priced in columns, so all picked rows of a space are priced in one go and then put back in order.
    last = {one.number: one for one in sorted(picked, key=lambda one: one.row)}
    priced = {number: price_plans(spaces[number], one.ranked.first(one.row + 1)) for number, one in last.items()}
    return tuple(priced[one.number][one.row] for one in picked)


def price_plans(space: Space, ranked: Ranked) -> list[Candidate]:
    """The plans with the terms of their time and with their memory, of which a search keeps neither."""
    across = space.tensor_parallel_across_nodes
    strategies = strategies_of(
        ranked.plans, space.setting.model.num_layers, tensor_parallel_across_nodes=across, settings=ranked.settings
    )
    candidates: dict[int, Candidate] = {}
    for setting in set_of(ranked.settings):
        rows = [row for row, own in enumerate(ranked.settings) if own == setting]
        plans = ranked.plans.rows(np.array(rows))
        prices = price(setting, plans)
        hedged = _hedged_seconds(space, setting, plans, prices.step_seconds)
        departing = departures(setting, plans, prices.peak_memory_bytes)
        for place, row in enumerate(rows):
            candidates[row] = Candidate(
                space=replace(space, setting=setting),
                strategy=strategies[row],
                step_terms=row_of(prices.step, place),
                step_seconds=float(prices.step_seconds[place]),
                hedged_seconds=float(hedged[place]),
                peak_memory_bytes=int(prices.peak_memory_bytes[place]),
                worst_stage=int(prices.worst_stage[place]),
                departures=tuple(words for words, marked in departing.items() if marked[place]),
            )
    return [candidates[row] for row in range(len(ranked))]


def _hedged_seconds(space: Space, setting: Setting, plans: Plans, declared: Floats) -> Floats:
    cluster = space.with_fewest_ports
    if cluster is None:
        return declared
    slow = replace(setting, cluster=cluster)
    return geometric_mean(declared, price_step(slow, plans, work_of(slow, plans)).total_seconds)


def set_of(settings: Sequence[Setting]) -> list[Setting]:
    """The different settings. They hold mappings, and so have no hash."""
    different: list[Setting] = []
    for setting in settings:
        if setting not in different:
            different.append(setting)
    return different


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


def _empty_error(spaces: Sequence[Space], founds: Sequence[Found], training: Training) -> InfeasiblePlan:
    """The error that says why the search came back empty, and what comes closest."""
    # From the mildest cause to the worst: limits that are too tight, then memory, then no legal plan at all.
    fitting = [(space, found) for space, found in zip(spaces, founds, strict=True) if found.num_fitting]
    if fitting:
        return _limits_too_tight(fitting, training)
    legal = [(space, found) for space, found in zip(spaces, founds, strict=True) if found.num_strategies]
    if legal:
        space, found = min(legal, key=lambda pair: pair[1].smallest_bytes / pair[0].room_bytes)
        capacity = space.setting.cluster.device.memory_bytes
        free = f", {space.headroom_bytes / GIBIBYTE:.1f} of them to be left free" if space.headroom_bytes else ""
        return InfeasiblePlan(
            "cluster.device.memory_bytes",
            capacity,
            f"is too little for {space.setting.model.name} on {space.world_size} x {space.setting.cluster.device.name}:"
            f" of {count_of(found.num_strategies, 'plan')} that {_trainer(space)} runs the one that needs least takes"
            f" {found.smallest_bytes / GIBIBYTE:.1f} GiB per device of {capacity / GIBIBYTE:.1f} GiB{free}",
            f"Use more devices or another cluster, {_wider(space)}{', or take a smaller --headroom' if free else ''}.",
        )
    return _no_plan(spaces)


class NoLegalPlan(InfeasiblePlan):
    """No plan with the pinned knobs can exist, whatever memory it takes."""


def _no_plan(spaces: Sequence[Space]) -> NoLegalPlan:
    sizes = sorted({space.world_size for space in spaces})
    pinned = {KNOB[name].key: value for space in spaces for name, value in space.pinned.items()}
    devices = sizes[0] if len(sizes) == 1 else sizes
    words = count_of(sizes[0], "device") if len(sizes) == 1 else f"{sizes} devices"
    job = f"{spaces[0].setting.model.name} and a batch of {count_of(spaces[0].global_batch_size, 'sequence')}"
    remedy = f"Change the number of devices or batch.global_batch_size, {_wider(spaces[0])}."
    if len(pinned) == 1:
        ((key, value),) = pinned.items()
        return NoLegalPlan(key, value, f"leaves no legal plan for {job} on {words}", HINTS.get(key, remedy))
    given = ", ".join(f"{key}={value_text(value)}" for key, value in pinned.items())
    problem = f"has no legal plan that {_trainer(spaces[0])} runs for {job}" + (f" with {given}" if given else "")
    return NoLegalPlan("parallel.world_size", devices, problem, remedy)


def _trainer(space: Space) -> str:
    return space.setting.implementation.name


def _wider(space: Space) -> str:
    """The words on how more plans are let in."""
    return "or pin fewer knobs" if space.pinned else "or choose another trainer with --implementation"


def _limits_too_tight(fitting: Sequence[tuple[Space, Found]], training: Training) -> InfeasiblePlan:
    """Name the limit that even the fastest or the cheapest plan misses; else say that no plan keeps both limits."""
    hours = min(total_hours(training, found.fastest_seconds) or 0.0 for _, found in fitting)
    if training.deadline_hours is not None and hours > training.deadline_hours:
        problem = f"the fastest plan takes {hours:,.1f} hours"
        return InfeasiblePlan("--deadline", _as_given(training.deadline_hours), problem, _REMEDY)
    dollars = min(total_dollars(training, space, found.fastest_seconds) or 0.0 for space, found in fitting)
    if training.budget_dollars is not None and dollars > training.budget_dollars:
        problem = f"the cheapest plan costs ${dollars:,.2f}"
        return InfeasiblePlan("--budget", _as_given(training.budget_dollars), problem, _REMEDY)
    return InfeasiblePlan(
        "--budget",
        _as_given(training.budget_dollars or 0.0),
        f"is met by no plan that also meets the deadline of {training.deadline_hours:g} hours: the cheapest of all"
        f" costs ${dollars:,.2f}, the fastest takes {hours:,.1f} hours",
        _REMEDY,
    )


def _as_given(limit: float) -> float:
    """The number as a person writes it, without a point where there is nothing behind it."""
    return int(limit) if float(limit).is_integer() else limit


_REMEDY = "Allow more, train fewer tokens, or offer other devices with --devices or --clusters."


@dataclass(frozen=True, slots=True)
class Judged:
    """A plan with its prediction, and what is known of that one's error."""

    candidate: Candidate
    predicted: Estimate
    interval: Interval


def gain_in_words(better: Candidate, plan: Candidate, objective: PlanObjective = "time") -> str:
    """What a plan gains on paper over another, how likely it is to fit, and its further departures.

    Empty where it gains nothing that is worth a word.
    """
    values = [objective_value(objective, each.space, each.step_seconds) for each in (better, plan)]
    words = [each for each in better.departures if each not in (*plan.departures, UNLIKELY)]
    if not (gain := gain_of(1 - values[0] / values[1], f"{BETTER[objective]} on paper")):
        return ""
    odds = "" if better.is_likely else f", {better.odds_in_words}"
    hangs = better.hedged_seconds * plan.step_seconds > plan.hedged_seconds * better.step_seconds * (1 + HEDGED_MORE)
    ports = ", if a ring gets all ports of a node, which nobody measured here" if hangs else ""
    return gain + odds + (f", with {', '.join(words)}" if words else "") + ports


def judge(candidates: Sequence[Candidate], parts: Settings) -> list[Judged]:
    """The candidates with their intervals; model and cluster are those of each, the rest is of the configuration."""
    setups = [_setup_of(candidate, parts) for candidate in candidates]
    trainers = [candidate.space.setting.implementation for candidate in candidates]
    predicted, stated = estimates(list(zip(setups, trainers, strict=True))), stated_practice(parts.trainer)
    return [
        Judged(candidate, one, interval_of(setup, trainer.name, one, stated))
        for candidate, setup, trainer, one in zip(candidates, setups, trainers, predicted, strict=True)
    ]


def _setup_of(candidate: Candidate, parts: SetupParts) -> Setup:
    setting = candidate.space.setting
    like = parts.model_copy(update={"model": setting.model, "cluster": setting.cluster, "mixed": None})
    return candidate.strategy.setup(like)


def rivals_of(choice: Choice, best: Judged) -> list[int]:
    """The families that predictions cannot tell from the best, itself among them, by their places in the order.

    There are at least these where families were left out unpriced (`Choice.num_left_out`).
    """
    # Every objective is proportional to the step's time, so that a share of the time is the same share of the value.
    limit = choice.family_values[0] * (1 + best.interval.rivals)
    return [place for place, value in enumerate(choice.family_values) if value <= limit]
