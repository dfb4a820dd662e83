"""A scenario of `make chaos`, and the catalogue of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.chaos.workbench import ChaosWorkbench


@dataclass(frozen=True)
class Scenario:
    """One harm that is done to a sweep while it runs.

    Attributes:
        harm: what is done, for people.
        run: does it; carries the sweep on, and returns when nothing more is to come.
        num_trials: of the sweep.
        repetitions: each with a sweep of its own.
        is_mixed: every trial is a heterogeneous job, over nodes of two kinds.
        alone: it disturbs whatever else runs on the cluster.
    """

    name: str
    harm: str
    run: Callable[[ChaosWorkbench], None]
    num_trials: int = 4
    repetitions: int = 2
    alone: bool = False
    is_mixed: bool = False


CATALOGUE: dict[str, Scenario] = {}
"""The scenarios by name, in the order in which they were added."""


def scenario(
    harm: str, *, num_trials: int = 4, repetitions: int = 2, alone: bool = False, is_mixed: bool = False
) -> Callable[[Callable[[ChaosWorkbench], None]], Callable[[ChaosWorkbench], None]]:
    """A decorator, which adds to the catalogue: the scenario bears the function's name."""

    def keep(run: Callable[[ChaosWorkbench], None]) -> Callable[[ChaosWorkbench], None]:
        name = run.__name__.replace("_", "-")
        assert name not in CATALOGUE
        CATALOGUE[name] = Scenario(name, harm, run, num_trials, repetitions, alone, is_mixed)
        return run

    return keep
