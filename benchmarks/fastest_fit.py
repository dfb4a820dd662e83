"""The layout that the cost model predicts to be the fastest of those that fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from conf.compose.load import settings_of
from conf.compose.tree import Tree, with_values
from conf.errors import InfeasiblePlan
from conf.plan.experiment import Experiment
from conf.types.schema import Value
from train_core.costs import Estimate, estimate


class FastestFit(NamedTuple):
    """An experiment that fits, and what it should cost."""

    experiment: Experiment
    predicted: Estimate


def fastest_fit(tree: Tree, choices: Mapping[str, Sequence[Value]], memory_share: float = 1.0) -> FastestFit | None:
    """The fastest of all combinations; of equally fast ones the first. None where nothing fits.

    Args:
        choices: values of each dotted key, smaller ones first.
        memory_share: how much of a device's memory may be predicted to be full.
    """
    return min(_fits(tree, choices, memory_share), key=lambda fit: fit.predicted.step_seconds, default=None)


def _fits(tree: Tree, choices: Mapping[str, Sequence[Value]], memory_share: float) -> Iterator[FastestFit]:
    for values in product(*choices.values()):
        try:
            experiment = settings_of(with_values(tree, dict(zip(choices, values, strict=True)))).experiment()
        except InfeasiblePlan:
            continue
        predicted = estimate(experiment)
        if predicted.peak_memory_bytes <= memory_share * predicted.memory_capacity_bytes:
            yield FastestFit(experiment, predicted)
