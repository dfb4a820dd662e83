"""`trisweep plan`: predict the points of a sweep, or search all plans for the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import AsJson, OverrideTexts, ShowConfig, complete_sweep, composition_of, print_config
from cli.commands.plan.answer import print_best, print_plan, print_space
from cli.commands.plan.options import SearchOptions
from cli.output.console import complaints, print_json
from conf.errors import EXIT_FAILED, UsageError
from conf.overrides import Override, Overrides, override_text

if TYPE_CHECKING:
    from conf.compose.load import Composition

AS_PROGRAM = "Print the best plan as the command of megatron-lm (or -core), torchtitan, deepspeed or `command`."
SBATCH = "With --as: print a file for sbatch that starts the command on the cluster."
Name = Annotated[
    str | None,
    typer.Argument(
        help="A sweep of `trisweep list sweep`, such as 175b; without it, overrides choose model and cluster.",
        autocompletion=complete_sweep,
    ),
]


def plan(
    name: Name = None,
    overrides: OverrideTexts = None,
    cfg: ShowConfig = False,
    *,
    options: SearchOptions,
    as_json: AsJson = False,
    as_program: Annotated[str | None, typer.Option("--as", help=AS_PROGRAM)] = None,
    sbatch: Annotated[bool, typer.Option("--sbatch", help=SBATCH)] = False,
) -> None:
    """Predict the points of a sweep on paper, or search all plans of a model for the best."""
    if sbatch and as_program is None:
        raise UsageError("--sbatch puts a command of --as into a job", "Add --as PROGRAM, such as --as megatron-lm.")
    composition = asked_composition(_composition(name, overrides or [], as_program, as_json), options)
    if cfg:
        print_config(composition)
        return
    if as_program is not None:
        from cli.commands.plan.as_program import print_as

        print_as(composition, options, sbatch=sbatch)
    elif is_search(composition, options):
        from cli.commands.plan.search import run_search

        run_search(composition, options, as_json=as_json)
    else:
        _predict(composition, as_json)


def _composition(name: str | None, overrides: Sequence[str], as_program: str | None, as_json: bool) -> Composition:
    """The configuration of the command, with the trainer of `--as` in it."""
    sweep, texts = sweep_and_overrides(name, overrides)
    if as_program is None:
        return composition_of(sweep, texts)
    if as_json:
        raise UsageError("--as prints a command, which --json has no document for", "Leave one of them out.")
    from cli.commands.plan.as_program import with_trainer

    return composition_of(sweep, with_trainer(as_program, texts))


def asked_composition(composition: Composition, options: SearchOptions) -> Composition:
    """The configuration that is planned: with usual values for what nobody gave, and a searched sweep's largest point.

    Raises ConfigError where an option names a cluster that does not exist.
    """
    composition = _with_usual_values(composition, options)
    return _as_points_have_it(composition, options) if options.ask_for_a_search else composition


def is_search(composition: Composition, options: SearchOptions) -> bool:
    """True if all plans are searched, false if the points of a sweep are predicted."""
    return options.ask_for_a_search or composition.overrides.stated_value("sweep") is None


def _with_usual_values(composition: Composition, options: SearchOptions) -> Composition:
    """The configuration with what nobody gave of batch and precision, which is said: both decide what is best."""
    from conf.compose.complaints import require_option
    from conf.compose.load import compose
    from sweeps.planner.request import offers, usual_overrides

    mixed = [cluster for cluster, _ in offers(options.mixed)] if options.mixed else []
    clusters = mixed or options.chosen_clusters
    for name in clusters:
        require_option("cluster", name, "--mixed" if mixed else "--clusters")
    added = usual_overrides(composition, clusters)
    if not added:
        return composition
    complaints.print(f"These were not given; the usual values are used: {' '.join(added)}")
    return compose(composition.overrides + Overrides.parse(added))


def _as_points_have_it(composition: Composition, options: SearchOptions) -> Composition:
    """The configuration of a sweep that is searched, with what its points state of batch, devices and model.

    The largest point's count where the points differ, and none has what the configuration says.
    """
    from conf.compose.load import compose
    from sweeps.points.plan import WORLD_SIZE, fixed_by_points

    points = fixed_by_points(composition) if composition.settings.sweep and not options.mixed else []
    if not points or {} in points:
        return composition
    stated = {WORLD_SIZE} if options.devices is not None else set[str]()
    chosen = {key: value for key, value in points[-1].items() if key not in stated}
    added = Overrides.parse(override_text(key, value) for key, value in chosen.items())
    which = "as its points have it" if len(points) == 1 else "as its largest point has it, unless others are given"
    complaints.print(f"Searched for the sweep {which}: {' '.join(added.words)}")
    return compose(composition.overrides + added)


def _predict(composition: Composition, as_json: bool) -> None:
    from sweeps.points.plan import plan_sweep

    record = plan_sweep(composition, proxy=False, git_sha="")
    if as_json:
        from results.tables.documents import plan_document

        print_json("plan", plan_document(record))
    else:
        print_plan(record, composition)
        print_space(composition, record)
        print_best(composition, record)
    if record.plan and not any(trial.experiment for trial in record.plan):
        raise typer.Exit(EXIT_FAILED)  # a script must not take an empty plan for one


def sweep_and_overrides(name: str | None, overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """The name of the sweep, if one was given, and the overrides: the first argument may be either.

    Raises UsageError where neither was given.
    """
    if not name:
        remedy = "Name a sweep, such as `trisweep plan 175b`, or model=NAME cluster=NAME."
        raise UsageError("Nothing to plan was named", remedy)
    # Typer gives the first word to `name` even where the user left the sweep out and began with an override.
    is_override = Override.parse(name).value is not None
    return (None, [name, *overrides]) if is_override else (name, list(overrides))
