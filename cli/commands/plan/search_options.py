"""The options of `trisweep plan` for a search, as one value."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from conf.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from sweeps.planner.choosing.objectives import PlanObjective, ScalingKind

DEFAULT_TOP = 10
DEFAULT_OBJECTIVE: PlanObjective = "time"
DEFAULT_FORMAT = "table"
FLAGS = {"num_tokens": "--tokens", "num_steps": "--steps", "output_format": "--format"}
"""Fields that are not called as their options are."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The options as they were given: None, empty or False where one was not.

    Defaults are filled in by the properties below, so that a value still tells whether the user gave it.

    Attributes:
        search: search, whatever else was said or not.
        budget: dollars of the whole training.
        deadline: hours of the whole training.
        explain: `best`, or overrides of the configured plan with blanks between them.
        implementation: the trainer whose costs are taken, in place of those of the configured one.
        top: so many families, or plans, are shown.
        flat: show plans whatever their families.
        headroom: memory that plans leave free.
    """

    search: bool = False
    objective: PlanObjective | None = None
    budget: float | None = None
    deadline: float | None = None
    num_tokens: int | None = None
    num_steps: int | None = None
    devices: str | None = None
    clusters: tuple[str, ...] = ()
    mixed: str | None = None
    implementation: str | None = None
    pareto: bool = False
    explain: tuple[str, ...] = ()
    scaling: ScalingKind | None = None
    exhaustive_knobs: bool = False
    top: int | None = None
    flat: bool = False
    headroom: str | None = None
    output_format: str | None = None

    @property
    def ask_for_a_search(self) -> bool:
        """True if any option was given, because all of them are about searches."""
        return self != SearchOptions()

    def require_only(self, allowed: Container[str], problem: str) -> None:
        """Refuse every other option than those of these fields: silence would suggest that it counted.

        Raises:
            UsageError: another was given.
        """
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        refused = [FLAGS.get(name, f"--{name.replace('_', '-')}") for name in given if name not in allowed]
        if refused:
            raise UsageError(problem, f"Leave out {', '.join(refused)}.")

    def as_json(self) -> SearchOptions:
        """The same search, answered in JSON.

        Raises:
            ConfigError: another format was asked for.
        """
        if self.output_format not in (None, "json"):
            raise ConfigError("--format", self.output_format, "is not what --json asks for", "Give one of them.")
        return replace(self, output_format="json")

    @property
    def chosen_objective(self) -> PlanObjective:
        return self.objective or DEFAULT_OBJECTIVE

    @property
    def num_shown(self) -> int:
        return self.top or DEFAULT_TOP

    @property
    def chosen_format(self) -> str:
        return self.output_format or DEFAULT_FORMAT
