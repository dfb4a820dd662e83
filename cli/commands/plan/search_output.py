"""The answer of a search, as a table, JSON or CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import typer

from cli.output.console import console, print_json, print_unwrapped
from cli.output.next_command import same_command
from conf.grouped import grouped
from conf.overrides import Overrides
from conf.units import count_of
from results.search_rows import (
    as_csv,
    families_document,
    judged_row,
    mixed_document,
    mixed_row,
    mixed_table,
    search_document,
    search_row,
)
from results.terminal.search_tables import (
    explanation_document,
    explanation_lines,
    judged_table,
    notes,
    padded_vocabulary_sentence,
    scaling_document,
    scaling_table,
    search_table,
    tight_sentences,
)
from sweeps.planner.choosing.choice import Candidate, Choice, Judged
from sweeps.planner.choosing.explain import Explanation
from sweeps.planner.choosing.objectives import PlanObjective, ScalingKind, Training
from sweeps.planner.choosing.scaling import ScalingPoint
from sweeps.planner.mixed import MixedChoice
from sweeps.planner.plans.space import Space
from sweeps.planner.request import Request

RANKED_BY: dict[PlanObjective, str] = {
    "time": "time of a step",
    "cost": "dollars a token",
    "energy": "joules a token (design power of the devices)",
    "device-hours": "device-hours a token",
}


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


def print_answer(answer: SearchOutput, output_format: str) -> None:
    """Print the answer. JSON and CSV have stdout to themselves, so that they can be piped."""
    if output_format == "json":
        print_json("search", _document(answer))
    elif output_format == "csv":
        if answer.front is not None:
            rows = [search_row(found, answer.training) for found in answer.front]
        else:
            rows = [judged_row(found, answer.training) for found in answer.shown]
        typer.echo(as_csv(rows), nl=False)
    else:
        _print_tables(answer)


def print_explanations(explanations: Sequence[Explanation], output_format: str = "table") -> None:
    """Print explanations, in JSON where a search that found no plan was asked for that."""
    if explanations and output_format == "json":
        print_json("search", {"explanations": [explanation_document(each) for each in explanations]})
        return
    for explanation in explanations:
        for line in explanation_lines(explanation):
            console.print(line)


def print_mixed(
    choice: MixedChoice, request: Request, given: Overrides, training: Training, output_format: str
) -> None:
    """Print the answer for one job over several types of devices.

    Args:
        given: the overrides of the user, with the choice of a sweep if there is one.
    """
    if output_format == "json":
        print_json("mixed_search", mixed_document(choice, request.spaces, training, request.padding_overrides))
    elif output_format == "csv":
        typer.echo(as_csv([mixed_row(found, request.spaces, training) for found in choice.best]), nl=False)
    else:
        console.print(_question(request))
        console.print(mixed_table(choice.best, request.spaces, training))
        console.print(f"{choice.num_strategies:,} assignments; searched in {choice.search_seconds:.2f} s.")
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
        document["scaling"] = scaling_document(points, kind)
    return document


def _print_tables(answer: SearchOutput) -> None:
    choice, training = answer.choice, answer.training
    console.print(_question(answer.request))
    families = "family" if choice.num_left_out == 1 else "families"
    of_families = "" if answer.flat else "the best of each family, "
    ranked = f"{of_families}ranked by {RANKED_BY[answer.objective]}"
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
        for sentence in tight_sentences(answer.front):
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
