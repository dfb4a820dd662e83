"""Carry out a search for the command line: options in, one answer out, as tables or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from cli.commands.plan.options import DEFAULT_OBJECTIVE, SearchOptions
from cli.output.console import complaints, console, print_json, print_unwrapped
from cli.output.next_command import same_command
from conf.compose.load import Composition, compose
from conf.errors import ConfigError, InfeasiblePlan, UsageError
from conf.grouped import grouped
from conf.overrides import Overrides
from conf.plan.knobs import KNOB
from conf.units import count_of
from results.tables.search_rows import (
    families_document,
    mixed_document,
    mixed_table,
    search_document,
    search_row,
)
from results.tables.search_tables import (
    explanation_document,
    explanation_lines,
    judged_table,
    mixed_sentences,
    notes,
    padded_vocabulary_sentence,
    scaling_document,
    scaling_table,
    search_table,
    unlikely_sentences,
)
from sweeps.planner.choosing.choice import (
    MOST_SEARCHED_WHOLE,
    Candidate,
    Choice,
    Judged,
    NoLegalPlan,
    choose_plans,
    judge,
    pareto_front,
)
from sweeps.planner.choosing.explain import Explanation, explain, priceable
from sweeps.planner.choosing.objectives import PlanObjective, ScalingKind, Training, steps_for, tokens_per_step
from sweeps.planner.choosing.scaling import ScalingPoint, doublings, scaling_curve
from sweeps.planner.mixed import MixedChoice, choose_mixed
from sweeps.planner.plans.space import Space
from sweeps.planner.request import Request, configured_strategy, mixed_request, search_request

RANKED_BY: dict[PlanObjective, str] = {
    "time": "time of a step",
    "cost": "dollars a token",
    "energy": "joules a token (design power of the devices)",
    "device-hours": "device-hours a token",
}
BEST = "best"
WORLD_SIZE = "parallel.world_size"
OF_MIXED = frozenset({"search", "tokens", "steps", "mixed", "implementation", "top", "headroom"})


def run_search(composition: Composition, options: SearchOptions, *, as_json: bool) -> None:
    """Search and print; plans that were named are explained even where no plan fits or keeps the limits.

    Raises:
        ConfigError: something is unknown, contradicts itself, or cannot be.
        InfeasiblePlan: no plan fits, or none keeps the limits; plans that were named are explained all the same.
    """
    if options.mixed is not None:
        _run_mixed(composition, options, as_json=as_json)
        return
    wanted = request_of(composition, options)
    try:
        answer = search(composition, options, wanted)
    except InfeasiblePlan:
        # Somebody who asks about a plan learns here why it does not fit, although nothing else does either.
        named = [_explanation_of(plan, composition, wanted.spaces[0]) for plan in options.explain or () if plan != BEST]
        print_explanations(named, as_json=as_json)
        raise
    if as_json:
        print_json("search", _document(answer))
    else:
        _print_tables(answer)


def search(composition: Composition, options: SearchOptions, wanted: Request) -> SearchOutput:
    """The answer of a search over the devices of one cluster or several.

    Raises:
        ConfigError: something is unknown, contradicts itself, or cannot be.
        InfeasiblePlan: no plan fits, or none keeps the limits.
    """
    training = training_of(wanted, options)
    # Many numbers of devices take seconds.
    waits = len(wanted.spaces) > MOST_SEARCHED_WHOLE and complaints.is_terminal
    message = f"Searching all plans on {len(wanted.spaces):,} numbers of devices ..."
    with complaints.status(message) if waits else nullcontext():
        choice = choose(wanted, options, training, options.num_shown)
    return SearchOutput(
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


def _run_mixed(composition: Composition, options: SearchOptions, *, as_json: bool) -> None:
    assert options.mixed is not None
    # A mixed job has its devices given and is searched for time alone, which may be said.
    allowed = OF_MIXED | {"objective"} if options.chosen_objective == DEFAULT_OBJECTIVE else OF_MIXED
    options.require_only(allowed, "--mixed says which devices one job takes, and finds the fastest plan")
    _say_passed_over(composition, "--mixed", options.mixed)
    wanted = mixed_request(composition, options.mixed, options.implementation, options.headroom)
    training = training_of(wanted, options)
    choice = choose_mixed(wanted.spaces, options.num_shown)
    print_mixed(choice, wanted, composition.overrides, training, as_json=as_json)


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


@dataclass(frozen=True, slots=True)
class SearchOutput:
    """A search's request and result; `front` and `scaling` are None unless they were asked for."""

    request: Request
    training: Training
    objective: PlanObjective
    choice: Choice
    shown: Sequence[Judged]
    flat: bool
    front: Sequence[Candidate] | None
    explanations: tuple[Explanation, ...]
    scaling: tuple[ScalingKind, Sequence[ScalingPoint]] | None


def print_explanations(explanations: Sequence[Explanation], *, as_json: bool = False) -> None:
    """Print explanations, in JSON where a search that found no plan was asked for that."""
    if explanations and as_json:
        print_json("search", {"explanations": [explanation_document(each) for each in explanations]})
        return
    for explanation in explanations:
        for line in explanation_lines(explanation):
            console.print(line)


def print_mixed(choice: MixedChoice, request: Request, given: Overrides, training: Training, *, as_json: bool) -> None:
    """Print the answer for one job over several types of devices.

    Args:
        given: the overrides of the user, with the choice of a sweep if there is one.
    """
    if as_json:
        print_json("mixed_search", mixed_document(choice, request.spaces, training, request.padding_overrides))
    else:
        console.print(_question(request))
        console.print(mixed_table(choice.best, request.spaces, training))
        console.print(f"{choice.num_strategies:,} assignments; searched in {choice.search_seconds:.2f} s.")
        for sentence in mixed_sentences(choice, request.settings.model.num_layers):
            console.print(sentence)
        if request.padding:
            console.print(padded_vocabulary_sentence(request.vocab_size, request.settings.model.vocab_size))
        own = [*request.padding_overrides, *choice.best[0].overrides()]
        print_unwrapped(f"Measure the first: {_command(own, given)}")


def _command(overrides: Sequence[str], given: Overrides) -> str:
    """The command that measures the plan, as a person may copy it: in the sweep that was named, else alone."""
    own = Overrides.parse(overrides)
    stated = {override.key for override in own}
    sweep = given.stated_value("sweep")
    others = given if sweep else given.without({"sweep"})
    kept = Overrides(tuple(override for override in others if override.key not in stated))
    return same_command("sweep" if sweep else "train", sweep, kept + own)


def _document(answer: SearchOutput) -> dict[str, object]:
    asked = answer.request
    document = search_document(answer.choice, answer.training, asked)
    if not answer.flat:
        document |= families_document(answer.choice, answer.shown, answer.training, asked)
    document["left_out"] = [{"cluster": out.cluster, "reason": str(out.reason)} for out in answer.request.left_out]
    if answer.front is not None:
        document["pareto"] = [search_row(found, answer.training) for found in answer.front]
    if answer.explanations:
        document["explanations"] = [explanation_document(each) for each in answer.explanations]
    if answer.scaling is not None:
        kind, points = answer.scaling
        document["scaling"] = scaling_document(points, kind, answer.request.settings)
    return document


def _print_tables(answer: SearchOutput) -> None:
    choice, training = answer.choice, answer.training
    console.print(_question(answer.request))
    families = "family" if choice.num_left_out == 1 else "families"
    which = "the" if answer.flat else "each family's"
    ranked = f"{which} best by {RANKED_BY[answer.objective]}, plain plans preferred"
    several = len(answer.request.spaces) > 1
    console.print(judged_table(answer.shown, training, ranked, several_places=several, width=console.width))
    console.print(
        f"{count_of(choice.num_strategies, 'plan')}, {choice.num_fitting:,} fit"
        + (f", {choice.num_feasible:,} within the limits" if choice.num_feasible < choice.num_fitting else "")
        + (f"; {choice.num_left_out:,} more {families} cannot be among the best" if choice.num_left_out else "")
        + f"; searched in {choice.search_seconds:.2f} s."
    )
    for out in answer.request.left_out:
        console.print(f"Left out: {out.cluster}: {out.reason}")
    for note in notes(answer.shown, None if answer.flat else choice, answer.request):
        console.print(note)
    if answer.front is not None:
        title = "nothing beats these in time and money"
        console.print(search_table(answer.front, training, title))
        for sentence in unlikely_sentences(answer.front):
            console.print(sentence)
    if answer.scaling is not None:
        kind, points = answer.scaling
        console.print(scaling_table(points, kind))
    print_explanations(answer.explanations)


def _question(request: Request) -> str:
    settings = request.settings
    places = grouped(request.spaces, lambda space: space.setting.cluster.name)
    devices = ", ".join(f"{_devices_in_words(spaces)} of {name}" for name, spaces in places.items())
    return (
        f"{settings.model.name} in {settings.precision.in_words} on {devices}; a step is"
        f" {count_of(settings.batch.global_batch_size, 'sequence')} of {settings.model.seq_length:,} tokens."
    )


def _devices_in_words(spaces: Sequence[Space]) -> str:
    first, last = spaces[0].world_size, spaces[-1].world_size
    if len(spaces) == 1:
        return count_of(first, "device")
    return f"{first:,} to {last:,} ({len(spaces)} numbers) devices"
