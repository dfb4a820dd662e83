"""What this trainer runs of what the cost model prices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from conf.errors import InfeasiblePlan
from conf.experiment import Experiment


class Choice(NamedTuple):
    """One configured value, and whether the trainer runs it."""

    key: str
    value: object
    supported: bool
    remedy: str


def require_supported(experiment: Experiment) -> None:
    """Nothing, if the trainer runs this experiment.

    Raises:
        InfeasiblePlan: it can be predicted, but not trained here; names the first key of which that is true.
    """
    for key, value, supported, remedy in _choices(experiment):
        if not supported:
            raise InfeasiblePlan(key, value, "can be predicted, but this trainer does not run it yet", remedy)


def _choices(experiment: Experiment) -> Iterator[Choice]:
    parallel, compares = experiment.parallel, experiment.watch.compare_replicas_every
    alone = "Use null: under ZeRO-3 there are no replicas of a weight that could differ."
    yield Choice("watch.compare_replicas_every", compares, compares is None or parallel.zero_stage < 3, alone)
