"""Carry out a search for the command line: options in, one answer out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Console

from cli.search_output import Answer, print_answer, print_explanations, print_mixed
from conf.errors import ConfigError, InfeasiblePlan, UsageError
from conf.load import load
from sweeps.planner import Candidate, Objective, Space, Training, choose, pareto_front
from sweeps.planner.objectives import steps_for, tokens_per_step
from sweeps.planner.request import Request, configured_strategy, mixed_request, request
from sweeps.planner.space import enumerated

if TYPE_CHECKING:
    from sweeps.planner.explain import Explanation
    from sweeps.planner.objectives import ScalingKind
    from sweeps.planner.scaling import ScalingPoint

BEST = "best"


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What the command line said.

    Attributes:
        training_limits: budget in dollars and deadline in hours.
        explain: `best`, or overrides of the configured plan with blanks between them.
    """

    objective: Objective
    training_limits: tuple[float | None, float | None]
    num_tokens: int | None
    num_steps: int | None
    devices: str | None
    clusters: tuple[str, ...]
    mixed: str | None
    implementation: str
    pareto: bool
    explain: tuple[str, ...]
    scaling: ScalingKind | None
    exhaustive_knobs: bool
    top: int
    output_format: str


def run_search(overrides: Sequence[str], options: SearchOptions, console: Console) -> None:
    """Search and print.

    Raises:
        ConfigError: something is unknown, contradicts itself, or cannot be.
        InfeasiblePlan: no plan fits, or none keeps the limits; plans that were named are explained all the same.
    """
    if options.mixed is not None:
        _run_mixed(overrides, options, console)
        return
    asked = request(
        overrides, devices=options.devices, clusters=options.clusters, implementation=options.implementation
    )
    training = _training(asked, options)
    try:
        choice = choose(asked.spaces, options.objective, training, options.top)
    except InfeasiblePlan:
        named = [_named(one, overrides, asked.spaces[0]) for one in options.explain if one != BEST]
        print_explanations(named, options.output_format, console)
        raise
    answer = Answer(
        request=asked,
        training=training,
        objective=options.objective,
        choice=choice,
        front=pareto_front(choice.best_of_each) if options.pareto else None,
        explanations=_explanations(overrides, options, asked, choice.best[0]),
        scaling=None if options.scaling is None else (options.scaling, _curve(options.scaling, asked.spaces)),
        knobs=enumerated(asked.spaces[-1]) if options.exhaustive_knobs else None,
    )
    print_answer(answer, options.output_format, console)


def _run_mixed(overrides: Sequence[str], options: SearchOptions, console: Console) -> None:
    """One job over several types of devices."""
    from sweeps.planner.mixed import choose_mixed

    assert options.mixed is not None
    budget, deadline = options.training_limits
    taken = (options.devices, options.clusters, options.pareto, options.explain, options.scaling, budget, deadline)
    if any(taken) or options.objective != "time":
        remedy = (
            "Leave out --devices, --clusters, --pareto, --explain, --scaling, --budget, --deadline and --objective."
        )
        raise UsageError("--mixed says which devices one job takes, and finds the fastest plan", remedy)
    asked = mixed_request(overrides, options.mixed, options.implementation)
    training = _training(asked, options)
    print_mixed(choose_mixed(asked.spaces, options.top), asked, training, options.output_format, console)


def _training(asked: Request, options: SearchOptions) -> Training:
    if options.num_tokens is not None and options.num_steps is not None:
        raise UsageError("--tokens and --steps both say how long the training is", "Give one of them.")
    num_steps = options.num_steps
    if options.num_tokens is not None:
        num_steps = steps_for(options.num_tokens, tokens_per_step(asked.spaces[0]))
    budget, deadline = options.training_limits
    for name, limit in (("budget", budget), ("deadline", deadline)):
        if limit is not None and not limit > 0:
            raise ConfigError(name, limit, "is not above zero", "Give dollars for --budget, hours for --deadline.")
    return Training(num_steps, budget, deadline)


def _curve(kind: ScalingKind, spaces: Sequence[Space]) -> list[ScalingPoint]:
    """Over the numbers of devices that were asked for, else over those that double up to the largest."""
    from sweeps.planner.scaling import doublings, scaling_curve

    if len({space.setting.cluster.name for space in spaces}) > 1:
        raise UsageError("A scaling curve is of one cluster, and several were offered", "Leave out --clusters.")
    if len(spaces) == 1:
        sizes = doublings(spaces[0].world_size, spaces[0].setting.cluster.devices_per_node)
        spaces = [replace(spaces[0], world_size=size) for size in sizes]
    return scaling_curve(spaces, kind)


def _explanations(
    overrides: Sequence[str], options: SearchOptions, asked: Request, best: Candidate
) -> tuple[Explanation, ...]:
    """The winner where that was asked for, and named plans on the cluster and the number of devices that won."""
    return tuple(
        _winner(best, asked) if named == BEST else _named(named, overrides, best.space) for named in options.explain
    )


def _winner(best: Candidate, asked: Request) -> Explanation:
    from sweeps.planner.explain import explain

    setting = best.space.setting
    parts = asked.settings.model_copy(update={"cluster": setting.cluster})
    return explain(best.strategy, parts, setting.implementation)


def _named(named: str, overrides: Sequence[str], space: Space) -> Explanation:
    """The configured plan with the overrides that name it, where the space is unless it says otherwise."""
    from sweeps.planner.explain import explain

    own, cluster = named.split(), space.setting.cluster
    settings = load([*overrides, f"cluster={cluster.name}", *own])
    if not any(one.startswith(("cluster=", "cluster.")) for one in own):
        settings = settings.model_copy(update={"cluster": cluster})
    given = any(one.startswith("parallel.world_size=") for one in own)
    world_size = settings.parallel.world_size if given else space.world_size
    return explain(configured_strategy(settings, world_size), settings, space.setting.implementation)
