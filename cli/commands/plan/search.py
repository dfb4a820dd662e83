"""Carry out a search for the command line: options in, one answer out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from cli.commands.plan.command import DEFAULT_OBJECTIVE, SearchOptions
from cli.commands.plan.search_output import SearchOutput, print_answer, print_explanations, print_mixed
from cli.output.console import complaints
from conf.compose.load import Composition, compose
from conf.errors import ConfigError, InfeasiblePlan, UsageError
from conf.overrides import Overrides
from conf.plan.knobs import KNOB
from sweeps.planner.choosing.choice import (
    MOST_SEARCHED_WHOLE,
    Candidate,
    Choice,
    NoLegalPlan,
    choose_plans,
    judge,
    pareto_front,
)
from sweeps.planner.choosing.explain import Explanation, explain, priceable
from sweeps.planner.choosing.objectives import ScalingKind, Training, steps_for, tokens_per_step
from sweeps.planner.choosing.scaling import ScalingPoint, doublings, scaling_curve
from sweeps.planner.mixed import choose_mixed
from sweeps.planner.plans.space import Space
from sweeps.planner.request import Request, configured_strategy, mixed_request, search_request

BEST = "best"
WORLD_SIZE = "parallel.world_size"
OF_MIXED = frozenset({"search", "tokens", "steps", "mixed", "implementation", "top", "format"})


def run_search(composition: Composition, options: SearchOptions) -> None:
    """Search and print; plans that were named are explained even where no plan fits or keeps the limits.

    Raises:
        ConfigError: something is unknown, contradicts itself, or cannot be.
        InfeasiblePlan: no plan fits, or none keeps the limits; plans that were named are explained all the same.
    """
    if options.mixed is not None:
        _run_mixed(composition, options)
        return
    given = [option for option, value in (("--explain", options.explain), ("--scaling", options.scaling)) if value]
    if options.chosen_format == "csv" and given:
        problem = "--format csv prints a line for each plan, and nothing else"
        raise UsageError(problem, f"Leave out {' and '.join(given)}, or take --json.")
    wanted = request_of(composition, options)
    training = training_of(wanted, options)
    # Many numbers of devices take seconds.
    waits = len(wanted.spaces) > MOST_SEARCHED_WHOLE and complaints.is_terminal
    message = f"Searching all plans on {len(wanted.spaces):,} numbers of devices ..."
    try:
        with complaints.status(message) if waits else nullcontext():
            choice = choose(wanted, options, training, options.num_shown)
    except InfeasiblePlan:
        # Somebody who asks about a plan learns here why it does not fit, although nothing else does either.
        named = [_explanation_of(plan, composition, wanted.spaces[0]) for plan in options.explain or () if plan != BEST]
        print_explanations(named, options.chosen_format)
        raise
    answer = SearchOutput(
        request=wanted,
        training=training,
        objective=options.chosen_objective,
        choice=choice,
        shown=judge(choice.best if options.flat else choice.families, wanted.settings),
        flat=options.flat,
        front=pareto_front(choice.best_of_each) if options.pareto else None,
        explanations=_explanations(composition, options, wanted, choice.best[0]),
        scaling=None if options.scaling is None else (options.scaling, _curve(options.scaling, wanted.spaces)),
    )
    print_answer(answer, options.chosen_format)


def choose(wanted: Request, options: SearchOptions, training: Training, top: int) -> Choice:
    """As `choose_plans`, but where no plan is legal it says why the pinned knobs are not, if they alone are not.

    Raises InfeasiblePlan where no plan fits, or none keeps the limits.
    """
    try:
        return choose_plans(wanted.spaces, options.chosen_objective, training, top, each=options.pareto)
    except NoLegalPlan:
        space = wanted.spaces[0]
        pinned = {KNOB[name].key for name in space.pinned}
        try:
            priceable(
                configured_strategy(wanted.settings, space.world_size), wanted.settings, space.setting.implementation
            )
        except InfeasiblePlan as reason:
            if len(wanted.spaces) == 1 < len(pinned) and reason.key in pinned:
                raise reason from None
        raise


def _run_mixed(composition: Composition, options: SearchOptions) -> None:
    assert options.mixed is not None
    # A mixed job has its devices given and is searched for time alone, which may be said.
    allowed = OF_MIXED | {"objective"} if options.chosen_objective == DEFAULT_OBJECTIVE else OF_MIXED
    options.require_only(allowed, "--mixed says which devices one job takes, and finds the fastest plan")
    _say_passed_over(composition, "--mixed", options.mixed)
    wanted = mixed_request(composition, options.mixed, options.implementation)
    training = training_of(wanted, options)
    choice = choose_mixed(wanted.spaces, options.num_shown)
    print_mixed(choice, wanted, composition.overrides, training, options.chosen_format)


def request_of(composition: Composition, options: SearchOptions) -> Request:
    _say_passed_over(composition, "--devices", options.devices)
    return search_request(
        composition,
        devices=options.devices,
        clusters=options.chosen_clusters,
        implementation=options.implementation,
        headroom=options.headroom,
    )


def _say_passed_over(composition: Composition, option: str, devices: str | None) -> None:
    """Say that the configuration's number of devices counts for nothing beside an option that names others."""
    stated = composition.overrides.stated_value(WORLD_SIZE)
    if devices is not None and stated not in (None, devices):
        complaints.print(f"{WORLD_SIZE}={stated} is passed over, as {option} says how many devices are searched.")


def training_of(wanted: Request, options: SearchOptions) -> Training:
    """The length of the training and its limits, as the options say."""
    if options.tokens is not None and options.steps is not None:
        raise UsageError("--tokens and --steps both say how long the training is", "Give one of them.")
    num_steps = options.steps
    if options.tokens is not None:
        one_step = tokens_per_step(wanted.spaces[0])
        if options.tokens < one_step:
            remedy = "Give those of the whole training, such as 300B, or a smaller batch.global_batch_size."
            raise ConfigError("--tokens", options.tokens, f"is less than the {one_step:,} of one step", remedy)
        num_steps = steps_for(options.tokens, one_step)
    for name, limit in (("--budget", options.budget), ("--deadline", options.deadline)):
        if limit is not None and not limit > 0:
            raise ConfigError(name, limit, "is not above zero", "Give dollars for --budget, hours for --deadline.")
    return Training(num_steps, options.budget, options.deadline)


def _curve(kind: ScalingKind, spaces: Sequence[Space]) -> list[ScalingPoint]:
    """The curve over the numbers of devices that were asked for, else over numbers that double up to the largest."""
    if len({space.setting.cluster.name for space in spaces}) > 1:
        raise UsageError("A scaling curve is for one cluster, but several were given", "Leave out --clusters.")
    if len(spaces) == 1:
        sizes = doublings(spaces[0].world_size, spaces[0].setting.cluster.devices_per_node)
        spaces = [replace(spaces[0], world_size=size) for size in sizes]
    return scaling_curve(spaces, kind)


def _explanations(
    composition: Composition, options: SearchOptions, wanted: Request, best: Candidate
) -> tuple[Explanation, ...]:
    """Explanations of the winner, where `best` is among the plans to explain, and of the others on its devices."""
    setting = best.space.setting
    parts = wanted.settings.model_copy(update={"cluster": setting.cluster})
    return tuple(
        explain(best.strategy, parts, setting.implementation)
        if plan == BEST
        else _explanation_of(plan, composition, best.space)
        for plan in options.explain or ()
    )


def _explanation_of(plan: str, composition: Composition, space: Space) -> Explanation:
    """The explanation of the configured plan with overrides, on the devices of `space` unless they state a number."""
    if "=" not in plan:
        remedy = "Write --explain best, or overrides such as 'batch.micro_batch_size=2'."
        raise ConfigError("--explain", plan, "names no plan", remedy)
    own, cluster = Overrides.parse(plan.split()), space.setting.cluster
    settings = compose(composition.overrides + Overrides.choosing("cluster", cluster.name) + own).settings
    if not own.of({"cluster"}).entries:
        settings = settings.model_copy(update={"cluster": cluster})
    # A null of the configuration has become all devices by now, so the overrides tell if a number was stated.
    states_devices = WORLD_SIZE in own.pinned_keys()
    world_size = settings.parallel.world_size if states_devices else space.world_size
    return explain(configured_strategy(settings, world_size), settings, space.setting.implementation)
