"""What a scenario of `make chaos` is, and what it found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import BaseModel

if TYPE_CHECKING:
    from benchmarks.chaos.workbench import Workbench


class Found(BaseModel):
    """How a sweep stood after it was harmed and carried on.

    Attributes:
        num_faults: how often harm was done.
        lost: trials that have no end, though nobody does anything more.
        twice: trials that ran to completion more than once.
        wrong: trials whose outcome is not what was done to them, or whose row in the report says something else.
        note: what went wrong, for people.
    """

    scenario: str
    num_trials: int
    num_faults: int
    lost: int
    twice: int
    wrong: int
    seconds: float
    note: str = ""

    @property
    def survived(self) -> bool:
        return not (self.lost or self.twice or self.wrong)


@dataclass(frozen=True)
class Scenario:
    """Attributes:
    harm: what is done, for people.
    run: does it; carries the sweep on, and returns when nothing more is to come.
    num_trials: of the sweep.
    repetitions: each with a sweep of its own.
    alone: it disturbs whatever else runs on the cluster.
    """

    name: str
    harm: str
    run: Callable[[Workbench], None]
    num_trials: int = 4
    repetitions: int = 2
    alone: bool = False


@dataclass
class Catalogue:
    """The scenarios, in the order in which they were added."""

    scenarios: dict[str, Scenario] = field(default_factory=dict)

    def add(
        self, harm: str, *, num_trials: int = 4, repetitions: int = 2, alone: bool = False
    ) -> Callable[[Callable[[Workbench], None]], Callable[[Workbench], None]]:
        """A decorator: the scenario bears the function's name."""

        def keep(run: Callable[[Workbench], None]) -> Callable[[Workbench], None]:
            name = run.__name__.replace("_", "-")
            assert name not in self.scenarios
            self.scenarios[name] = Scenario(name, harm, run, num_trials, repetitions, alone)
            return run

        return keep


CATALOGUE = Catalogue()
