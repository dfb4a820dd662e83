"""How likely a plan fits on the devices of a run, from what this run held of what it was predicted to hold."""

from __future__ import annotations

import numpy as np

from costs import Estimate
from costs.estimate import plans_of
from diagnose.measured import MeasuredSteps
from diagnose.understood import Understood
from sweeps.memory_odds import MemoryOdds
from sweeps.search.layouts.memory_fit import MemoryFit, MemorySeen
from sweeps.table.configuration import Configuration

COMPARABLE = (0.6, 1.5)
"""Measured over predicted bytes beyond these are of something else: another stage, or activations on the host."""


class MemoryRisk:
    """The probability that a plan fits: after this one run where it says its memory, else as on published runs."""

    def __init__(self, understood: Understood, measured: MeasuredSteps | None) -> None:
        """The run has a price."""
        configuration, predicted = understood.configuration, understood.predicted
        assert configuration is not None
        assert predicted is not None
        self.capacity = predicted.memory_capacity_bytes
        ratio = _seen_ratio(predicted, measured) if measured else None
        seen = [] if ratio is None else [(0, float(np.log(ratio)))]
        trainer, plans = configuration.implementation.name, plans_of([configuration.setup])
        self.odds = MemoryOdds.of(trainer, configuration.setup.parallel.world_size)
        self.fit = MemoryFit.fit(MemorySeen.of(plans, seen, []), trainer)

    def fits(self, configuration: Configuration, predicted: Estimate) -> float:
        """The probability that it fits; 1 where nothing is known of its memory, as of another optimizer than Adam."""
        if not configuration.models_memory:
            return 1.0
        sizes = np.array([float(predicted.peak_memory_bytes)]), np.array([float(self.capacity)])
        return float(self.fit.probability(plans_of([configuration.setup]), *sizes)[0])

    @property
    def headroom_bytes(self) -> int:
        """What a search has to leave free for plans of any kind to be likely to fit."""
        return self.capacity - self.fit.of_another_kind(self.odds).room_bytes(self.capacity)


def _seen_ratio(predicted: Estimate, measured: MeasuredSteps) -> float | None:
    if measured.allocated_bytes is not None:
        ratio = measured.allocated_bytes / predicted.allocated_bytes
    elif measured.reserved_bytes is not None:
        ratio = measured.reserved_bytes / predicted.peak_memory_bytes
    else:
        return None
    return ratio if COMPARABLE[0] <= ratio <= COMPARABLE[1] else None
