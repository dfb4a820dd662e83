"""`trisweep plan`: predict the points of a sweep, or search all plans for the best."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import TRAINERS, AsJson, OverrideTexts, ShowConfig, complete_sweep, composition_of, print_config
from cli.commands.plan.answer import print_best, print_plan, print_space
from cli.output.console import complaints, print_json
from conf.errors import EXIT_FAILED, ConfigError, UsageError
from conf.overrides import Override, Overrides, override_text

if TYPE_CHECKING:
    from conf.compose.load import Composition
    from sweeps.planner.choosing.objectives import PlanObjective, ScalingKind
else:
    PlanObjective = ScalingKind = str  # all that Typer has to know: `_known_word` says which words there are

DEFAULT_TOP = 10
DEFAULT_OBJECTIVE: PlanObjective = "time"
DEFAULT_FORMAT = "table"

MOST = 10**18
"""Tokens or steps, far more than anybody trains with. Their seconds and dollars still fit into a float."""
SCALES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
FORMATS = (DEFAULT_FORMAT, "csv")

EXPLAIN = "Take a plan apart: best, or overrides such as 'batch.micro_batch_size=2'; may be repeated."
AS_PROGRAM = "Print the best plan as the command of megatron-lm (or -core), torchtitan, deepspeed or `command`."
SBATCH = "With --as: print a file for sbatch that starts the command on the cluster."
FORMAT = f"{', '.join(FORMATS)}; CSV goes to stdout alone."

Name = Annotated[
    str | None,
    typer.Argument(
        help="A sweep of `trisweep list sweep`, such as 175b; left out, overrides say what to search.",
        autocompletion=complete_sweep,
    ),
]


def _known_word(option: typer.CallbackParam, value: str | None) -> str | None:
    """The value of an option that takes one of a few words."""
    if value is None:
        return None
    from sweeps.planner.choosing.objectives import PLAN_OBJECTIVES, SCALING_KINDS

    name = str(option.name)
    words = {"objective": PLAN_OBJECTIVES, "scaling": SCALING_KINDS, "format": FORMATS}[name]
    if value not in words:
        raise ConfigError(f"--{name}", value, "is not known", f"Use one of {', '.join(words)}.")
    return value


def _num_tokens(text: str) -> int:
    """A whole number, which people may write as 300e9 or 300B."""
    try:
        number = float(text[:-1]) * SCALES[text[-1:].upper()] if text[-1:].upper() in SCALES else float(text)
    except ValueError:
        number = math.nan
    if not 1 <= number <= MOST:  # nor is it so of NaN
        raise ConfigError("--tokens", text, f"must be a number from 1 to {MOST:.0e}", "Write it as 300e9, 300B or 15T.")
    return round(number)


def _possible_steps(steps: int | None) -> int | None:
    if steps is not None and not 1 <= steps <= MOST:
        raise ConfigError("--steps", steps, f"must be a whole number from 1 to {MOST:.0e}", "Count optimizer steps.")
    return steps


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The options about a search as they were given: None, empty or False where one was not.

    Defaults are filled in by the properties below, so that a value still tells whether the user gave it.
    """

    search: Annotated[bool, typer.Option("--search", help="Search all plans; every option below does, too.")] = False
    objective: Annotated[
        PlanObjective | None, typer.Option(help="time, cost, energy or device-hours.", callback=_known_word)
    ] = None
    budget: Annotated[float | None, typer.Option(help="Dollars for the whole training.")] = None
    deadline: Annotated[float | None, typer.Option(help="Hours for the whole training.")] = None
    tokens: Annotated[
        int | None,
        typer.Option(help="Tokens of the whole training: 300e9, 300B or 15T.", parser=_num_tokens, metavar="TEXT"),
    ] = None
    steps: Annotated[int | None, typer.Option(help="Steps of the whole training.", callback=_possible_steps)] = None
    devices: Annotated[str | None, typer.Option(help="Numbers of devices: 512, 256,512, 64-512 or all.")] = None
    clusters: Annotated[
        str | None,
        # A script's variable that is empty chooses none.
        typer.Option(help="Choose among clusters: selene,dgx-h100.", callback=lambda text: text or None),
    ] = None
    mixed: Annotated[str | None, typer.Option(help="One job over several: selene:512,dgx-h100:512.")] = None
    implementation: Annotated[str | None, typer.Option(help=f"The trainer to price for: {TRAINERS}.")] = None
    pareto: Annotated[bool, typer.Option("--pareto", help="The best in time against money, of all offers.")] = False
    explain: Annotated[list[str] | None, typer.Option(help=EXPLAIN)] = None
    scaling: Annotated[
        ScalingKind | None, typer.Option(help="Predict weak or strong scaling over the devices.", callback=_known_word)
    ] = None
    top: Annotated[int | None, typer.Option(help=f"Show so many families; {DEFAULT_TOP} unless given.", min=1)] = None
    flat: Annotated[bool, typer.Option("--flat", help="Show the best plans, whatever their families.")] = False
    headroom: Annotated[str | None, typer.Option(help="Memory that plans leave free: 6GiB, or 10%.")] = None
    format: Annotated[str | None, typer.Option(help=FORMAT, callback=_known_word)] = None

    @property
    def ask_for_a_search(self) -> bool:
        """True if any option was given, because all of them are about searches."""
        return self != SearchOptions()

    def require_only(self, allowed: Container[str], problem: str) -> None:
        """Refuse every other option than those of these fields: silence would suggest that it counted.

        Raises UsageError where another was given.
        """
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        refused = [f"--{name.replace('_', '-')}" for name in given if name not in allowed]
        if refused:
            raise UsageError(problem, f"Leave out {', '.join(refused)}.")

    def as_json(self) -> SearchOptions:
        """The same search, answered in JSON; raises ConfigError where another format was asked for."""
        if self.format is not None:
            raise ConfigError("--format", self.format, "is not what --json asks for", "Give one of them.")
        return replace(self, format="json")

    @property
    def chosen_objective(self) -> PlanObjective:
        return self.objective or DEFAULT_OBJECTIVE

    @property
    def chosen_clusters(self) -> tuple[str, ...]:
        return tuple(self.clusters.split(",")) if self.clusters else ()

    @property
    def num_shown(self) -> int:
        return self.top or DEFAULT_TOP

    @property
    def chosen_format(self) -> str:
        return self.format or DEFAULT_FORMAT


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
    composition = _with_usual_values(_composition(name, overrides or [], as_program, as_json), options)
    if options.ask_for_a_search:
        composition = _as_points_have_it(composition, options)
    if cfg:
        print_config(composition)
        return
    if as_program is not None:
        from cli.commands.plan.as_program import print_as

        print_as(composition, options, sbatch=sbatch)
    elif options.ask_for_a_search or composition.overrides.stated_value("sweep") is None:
        from cli.commands.plan.search import run_search

        run_search(composition, options.as_json() if as_json else options)
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
    complaints.print(f"Nobody gave these, so that a usual training's are taken: {' '.join(added)}")
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
        from results.documents import plan_document

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
