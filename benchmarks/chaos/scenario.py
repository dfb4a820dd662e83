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

    A scenario that could not be carried out, because the harm itself failed, says nothing of the sweep.

    Attributes:
        num_faults: how often harm was done.
        lost: trials that have no end, though nobody does anything more.
        twice: trials that ran to completion more than once.
        wrong: trials whose outcome is not what was done to them, or whose row in the report says something else; a
            traceback is one more.
        broken_off: 1 where the scenario could not be carried out.
        note: what went wrong, for people.
    """

    scenario: str
    num_trials: int
    num_faults: int = 0
    lost: int = 0
    twice: int = 0
    wrong: int = 0
    broken_off: int = 0
    seconds: float
    note: str = ""

    @property
    def survived(self) -> bool:
        return not (self.lost or self.twice or self.wrong or self.broken_off)


@dataclass(frozen=True)
class Scenario:
    """Attributes:
    harm: what is done, for people.
    run: does it; carries the sweep on, and returns when nothing more is to come.
    num_trials: of the sweep.
    repetitions: each with a sweep of its own.
    is_mixed: every trial is a heterogeneous job, over nodes of two kinds.
    alone: it disturbs whatever else runs on the cluster.
    """

    name: str
    harm: str
    run: Callable[[Workbench], None]
    num_trials: int = 4
    repetitions: int = 2
    alone: bool = False
    is_mixed: bool = False


@dataclass
class Catalogue:
    """The scenarios, in the order in which they were added."""

    scenarios: dict[str, Scenario] = field(default_factory=dict)

    def add(
        self, harm: str, *, num_trials: int = 4, repetitions: int = 2, alone: bool = False, is_mixed: bool = False
    ) -> Callable[[Callable[[Workbench], None]], Callable[[Workbench], None]]:
        """A decorator: the scenario bears the function's name."""

        def keep(run: Callable[[Workbench], None]) -> Callable[[Workbench], None]:
            name = run.__name__.replace("_", "-")
            assert name not in self.scenarios
            self.scenarios[name] = Scenario(name, harm, run, num_trials, repetitions, alone, is_mixed)
            return run

        return keep


CATALOGUE = Catalogue()
