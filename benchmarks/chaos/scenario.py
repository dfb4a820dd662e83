"""A scenario of `make chaos`, and the catalogue of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.chaos.aftermath import Aftermath
from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.person import Person
from benchmarks.chaos.workbench import ChaosWorkbench

Run = Callable[[Any], None]
"""With the bench of the scenario: a `ChaosWorkbench`, or a `Person` for those of the command line."""


@dataclass(frozen=True)
class Scenario:
    """One harm that is done to a sweep while it runs.

    Attributes:
        harm: what is done, for people.
        run: does it; carries the sweep on, and returns when nothing more is to come.
        num_trials: of the sweep.
        repetitions: each with a sweep of its own.
        is_mixed: every trial is a heterogeneous job, over nodes of two kinds.
        by_hand: a person gives commands for a program of their own, where others call the functions of the commands.
        alone: it disturbs whatever else runs on the cluster.
    """

    name: str
    harm: str
    run: Run
    num_trials: int = 4
    repetitions: int = 2
    alone: bool = False
    is_mixed: bool = False
    by_hand: bool = False

    def bench(self, folder: Path, cluster: Cluster, seed: str) -> ChaosWorkbench | Person:
        """Where one repetition takes place."""
        if self.by_hand:
            return Person(folder, cluster, self.num_trials, seed)
        make = ChaosWorkbench.of_mixed_jobs if self.is_mixed else ChaosWorkbench.new
        return make(folder, cluster, self.num_trials, seed)

    def broken_off(self, why: str, seconds: float) -> Aftermath:
        note = f"broken off: {why}"
        return Aftermath(scenario=self.name, num_trials=self.num_trials, broken_off=1, seconds=seconds, note=note)


CATALOGUE: dict[str, Scenario] = {}
"""The scenarios by name, in the order in which they were added."""


def scenario(harm: str, **attributes: Any) -> Callable[[Run], Run]:
    """A decorator, which adds to the catalogue: the scenario bears the function's name."""

    def keep(run: Run) -> Run:
        name = run.__name__.replace("_", "-")
        assert name not in CATALOGUE
        CATALOGUE[name] = Scenario(name, harm, run, **attributes)
        return run

    return keep
