"""Carry out a search for the command line: options in, one table, JSON or CSV out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import typer
from rich.console import Console

from conf.errors import UsageError
from sweeps.planner import Choice, Objective, Training, choose
from sweeps.planner.objectives import steps_for, tokens_per_step
from sweeps.planner.request import Request, request


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What the command line said."""

    objective: Objective
    budget_dollars: float | None
    deadline_hours: float | None
    num_tokens: int | None
    num_steps: int | None
    devices: str | None
    clusters: tuple[str, ...]
    implementation: str
    top: int
    output_format: str


def run_search(overrides: Sequence[str], options: SearchOptions, console: Console) -> None:
    """Search and print.

    Raises:
        ConfigError: something is unknown, contradicts itself, or cannot be.
    """
    asked = request(
        overrides, devices=options.devices, clusters=options.clusters, implementation=options.implementation
    )
    training = _training(asked, options)
    choice = choose(asked.spaces, options.objective, training, options.top)
    _print(choice, asked, options, training, console)


def _training(asked: Request, options: SearchOptions) -> Training:
    if options.num_tokens is not None and options.num_steps is not None:
        raise UsageError("--tokens and --steps both say how long the training is", "Give one of them.")
    num_steps = options.num_steps
    if options.num_tokens is not None:
        num_steps = steps_for(options.num_tokens, tokens_per_step(asked.spaces[0]))
    return Training(num_steps, options.budget_dollars, options.deadline_hours)


def _print(choice: Choice, asked: Request, options: SearchOptions, training: Training, console: Console) -> None:
    from results.search_rows import as_csv, search_document, search_row

    if options.output_format == "json":
        typer.echo(json.dumps(search_document(choice, training, asked.settings), indent=1))
    elif options.output_format == "csv":
        typer.echo(as_csv([search_row(one, training) for one in choice.best]), nl=False)
    else:
        _print_table(choice, asked, options, training, console)


def _print_table(choice: Choice, asked: Request, options: SearchOptions, training: Training, console: Console) -> None:
    from results.search_table import search_table

    console.print(_question(asked))
    console.print(search_table(choice.best, asked.settings, options.objective, training))
    console.print(
        f"{choice.num_strategies:,} plans, {choice.num_fitting:,} fit"
        + (f", {choice.num_feasible:,} within the limits" if choice.num_feasible < choice.num_fitting else "")
        + f"; searched in {choice.search_seconds:.2f} s."
    )


def _question(asked: Request) -> str:
    settings = asked.settings
    places: dict[str, list[int]] = {}
    for space in asked.spaces:
        places.setdefault(space.setting.cluster.name, []).append(space.world_size)
    shown = ", ".join(f"{_counts(counts)} devices of {name}" for name, counts in places.items())
    return (
        f"{settings.model.name} in {settings.precision.dtype} on {shown}; a step is"
        f" {settings.batch.global_batch_size:,} sequences of {settings.model.seq_length:,} tokens."
    )


def _counts(counts: Sequence[int]) -> str:
    return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,} ({len(counts)} numbers)"
