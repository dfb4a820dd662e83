"""How likely a plan fits on the devices of a run, from what this run held of what it was predicted to hold."""

from __future__ import annotations

import numpy as np

from diagnose.measured import MeasuredSteps
from diagnose.understood import Understood
from sweeps.planner.plans.space import Space
from sweeps.search.layouts.memory_fit import MemoryFit, MemorySeen, cumulative
from sweeps.table.configuration import Configuration
from train_core.costs import Estimate
from train_core.costs.estimate import plans_of

LEAST_LIKELY = 0.9
"""A plan that is less likely to fit is not proposed."""
COMPARABLE = (0.6, 1.5)
"""MeasuredSteps over predicted bytes beyond these are of something else: another stage, or activations on the host."""


class MemoryRisk:
    """The probability that a plan fits, after the one run that was seen."""

    def __init__(self, understood: Understood, measured: MeasuredSteps | None) -> None:
        """The run has a price."""
        configuration, predicted = understood.configuration, understood.predicted
        assert configuration is not None
        assert predicted is not None
        ratio = _seen_ratio(predicted, measured) if measured else None
        exact = [] if ratio is None else [(0, float(np.log(ratio)))]
        self.capacity, self.is_measured = predicted.memory_capacity_bytes, ratio is not None
        self.fit = MemoryFit.fit(MemorySeen.of(plans_of([configuration.setup]), exact, []))

    def fits(self, configuration: Configuration, predicted: Estimate) -> float:
        """The probability that it fits; 1 where nothing is known of its memory, as of another optimizer than Adam."""
        if not configuration.models_memory:
            return 1.0
        mean, spread = self.fit.ratio(plans_of([configuration.setup]))
        room = np.log(self.capacity / predicted.peak_memory_bytes)
        return float(cumulative((room - mean) / spread)[0])

    def headroom_bytes(self, space: Space) -> int:
        """What a search has to leave free for plans that are likely to fit, by the part that all of them share."""
        first, spread = float(self.fit.mean[0]), float(self.fit.covariance[0, 0]) ** 0.5
        most = self.capacity / np.exp(first + 1.28 * spread)  # of a normal variable 90 % lie below 1.28
        return max(0, int(space.setting.cluster.device.memory_bytes - most))


def _seen_ratio(predicted: Estimate, measured: MeasuredSteps) -> float | None:
    if measured.allocated_bytes is not None:
        ratio = measured.allocated_bytes / predicted.allocated_bytes
    elif measured.reserved_bytes is not None:
        ratio = measured.reserved_bytes / predicted.peak_memory_bytes
    else:
        return None
    return ratio if COMPARABLE[0] <= ratio <= COMPARABLE[1] else None
