"""The options of `trisweep plan` that are about a search."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import TRAINERS
from conf.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from sweeps.planner.choosing.objectives import PlanObjective, ScalingKind
else:
    PlanObjective = ScalingKind = str  # all that Typer has to know: `_known_word` says which words there are

DEFAULT_TOP = 10
DEFAULT_OBJECTIVE: PlanObjective = "time"

MOST = 10**18
"""Tokens or steps, far more than anybody trains with. Their seconds and dollars still fit into a float."""
SCALES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

EXPLAIN = "Take a plan apart: best, or overrides such as 'batch.micro_batch_size=2'; may be repeated."


def _known_word(option: typer.CallbackParam, value: str | None) -> str | None:
    """The value of an option that takes one of a few words."""
    if value is None:
        return None
    from sweeps.planner.choosing.objectives import PLAN_OBJECTIVES, SCALING_KINDS

    name = str(option.name)
    words = {"objective": PLAN_OBJECTIVES, "scaling": SCALING_KINDS}[name]
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

    search: Annotated[bool, typer.Option("--search", help="Search all plans, as --objective to --headroom do.")] = False
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
    pareto: Annotated[bool, typer.Option("--pareto", help="Plans that none beats in both time and money.")] = False
    explain: Annotated[list[str] | None, typer.Option(help=EXPLAIN)] = None
    scaling: Annotated[
        ScalingKind | None, typer.Option(help="Predict weak or strong scaling over the devices.", callback=_known_word)
    ] = None
    top: Annotated[int | None, typer.Option(help=f"Show N families; {DEFAULT_TOP} unless given.", min=1)] = None
    flat: Annotated[bool, typer.Option("--flat", help="Show the best plans, whatever their families.")] = False
    headroom: Annotated[
        str | None,
        typer.Option(help="Memory that plans leave free: 6GiB, 10% or 0; else those that are 90% likely to fit."),
    ] = None

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

    @property
    def chosen_objective(self) -> PlanObjective:
        return self.objective or DEFAULT_OBJECTIVE

    @property
    def chosen_clusters(self) -> tuple[str, ...]:
        return tuple(self.clusters.split(",")) if self.clusters else ()

    @property
    def num_shown(self) -> int:
        return self.top or DEFAULT_TOP
