"""Practice: how well runs are tuned, which nothing in a configuration says and which decides how long their steps take.

What it does was learned from published rows by who measured them (`practices.yaml`, beside this file): users ran a
trainer for the first time, makers by their recipe, authors of papers until nothing made it faster. A measured step of
one's own says more than any of these: it moves all predictions of its trainer and cluster, by its own `OwnLevel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import exp, sqrt
from statistics import NormalDist, median
from typing import Annotated

from pydantic import Field

from conf.folders import package_content
from conf.plan.experiment import Experiment
from conf.plan.setup import Setup
from conf.types.cluster_spec import OwnLevel
from conf.types.schema import Frozen, NonNegative
from conf.types.trainer_spec import Practice, TrainerSpec
from costs.trainers import TRISWEEP

PRACTICES: Mapping[str, Practice] = {"users": "first-run", "makers": "recipe", "papers": "tuned"}
"""The practice of published rows, by who measured them."""
FOUR_OF_FIVE = NormalDist().inv_cdf(0.9)
"""Standard deviations to both sides of a mean between which four of five normal values lie."""


class Level(Frozen):
    """What runs of one practice took, over what was predicted, as logarithms.

    Attributes:
        low, middle, high: a tenth is below, a half, and all but a tenth; the ends are for small layers to be widened.
        between: standard deviation between tables, each of a trainer and a machine.
        within: the same between the rows of a table.
        tables, rows: how many it rests on.
    """

    low: float
    middle: float
    high: float
    between: NonNegative
    within: NonNegative
    tables: Annotated[int, Field(gt=0)]
    rows: Annotated[int, Field(gt=0)]

    def kept(self, num_runs: int) -> float:
        """The share of what so many runs of one's own differ by from the middle that all of one's runs differ by."""
        return self.between**2 / (self.between**2 + self.within**2 / num_runs)

    def half_after(self, num_runs: int) -> float:
        """The logarithm by which an interval of 80 % reaches to both sides after so many runs of one's own."""
        return FOUR_OF_FIVE * sqrt(self.between**2 * (1 - self.kept(num_runs)) + self.within**2)

    def own(self, log_ratios: Sequence[float]) -> OwnLevel:
        """The level of one's own runs, from the logarithms of what they took over what was predicted."""
        # Beyond its interval a run says that something went wrong, and not how much all others will take.
        said = median(min(max(each, self.low), self.high) for each in log_ratios)
        moved = self.middle + self.kept(len(log_ratios)) * (said - self.middle)
        return OwnLevel(factor=exp(moved), num_runs=len(log_ratios))


@cache
def load_levels() -> Mapping[Practice, Level]:
    content = package_content("practices.yaml", "sweeps")
    return {name: Level.model_validate(content[name]) for name in PRACTICES.values()}


def stated_practice(trainer: TrainerSpec) -> Practice | None:
    """The practice that a trainer's configuration says; None leaves it to what is priced."""
    return trainer.practice or (None if trainer.is_own else "first-run")


def practice_of(setup: Setup, implementation: str) -> Practice:
    """The practice that an experiment states, else the usual one of its trainer.

    This package's own trainer runs as its maker meant it, by searched plans; nobody has tuned it on many GPUs yet. No
    published row was measured on a CPU.
    """
    if (stated := _stated(setup)) is not None:
        return stated
    on_gpus = all(block.cluster.device.kind == "gpu" for block in setup.blocks)
    return "recipe" if implementation == TRISWEEP.name and on_gpus else "first-run"


def practice_of_own(setup: Setup) -> Practice:
    """The practice whose spread says how far runs of one's own may move predictions: as stated, else as users' runs."""
    return _stated(setup) or "first-run"


def _stated(setup: Setup) -> Practice | None:
    return stated_practice(setup.trainer) if isinstance(setup, Experiment) else None


def own_level(setup: Setup, implementation: str) -> OwnLevel | None:
    """The level of the cluster's own runs of a trainer; None where it has none, or a job mixes clusters."""
    return None if setup.mixed is not None else setup.cluster.efficiency.levels.get(implementation)


NEARLY_EQUAL = 1.2
"""Factors below are said with two decimals."""
WHOSE = {"first-run": "first runs", "recipe": "runs by a maker's recipe", "tuned": "tuned runs"}


def after_runs(num_runs: int) -> str:
    """The words on what predictions rest on, beside published runs."""
    return f"after {num_runs} of your runs" if num_runs else "before any of your runs"


def said_before(practice: Practice, width: float = 1.0) -> str:
    """What most runs of a practice take.

    Args:
        width: factor on the logarithms of the interval's ends, for small layers.
    """
    level = load_levels()[practice]
    low, high = _times(level.low * width), _times(level.high * width)
    return (
        f"{after_runs(0).capitalize()}: most {WHOSE[practice]} take {low} to {high} times this; half are within"
        f" {_times(level.middle)}."
    )


def said_after(num_runs: int, half: float) -> str:
    """What most runs take after so many of one's own; 0 where nobody counted them.

    Args:
        half: the logarithm by which the interval reaches to both sides.
    """
    after = after_runs(num_runs).capitalize() if num_runs else "After your runs"
    return f"{after}: most take {_times(-half)} to {_times(half)} times this."


def _times(logarithm: float) -> str:
    times = exp(logarithm)
    return f"{times:.2f}" if times < NEARLY_EQUAL else f"{times:.1f}"
