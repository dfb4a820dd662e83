"""The objectives of a search of layouts: the seconds of a step, or a token's cost in devices, money or energy."""

from __future__ import annotations

import numpy as np

from conf.errors import ConfigError
from conf.sweep_spec import Objective, is_of_time
from sweeps.search.layouts.priced import Priced
from train_core.costs.setting import Floats

PER_TOKEN: tuple[Objective, ...] = ("throughput", "dollars", "energy")
"""On one cluster these rank plans alike: each token costs as much as the devices that it keeps busy."""


def seconds_to_cost(objective: Objective, priced: Priced) -> Floats:
    """Return what to add to the logarithm of a step's seconds to have the logarithm of the cost, (n,)."""
    if objective not in PER_TOKEN:
        return np.zeros(len(priced))
    shift: Floats = np.log(priced.plans.world_size) - np.log(priced.flops)
    return shift


def require_layouts_decide(objectives: tuple[Objective, ...]) -> Objective:
    """The one objective of a search of layouts.

    Raises:
        ConfigError: it is several, or one that does not follow from the layout.
    """
    if len(objectives) > 1:
        problem, remedy = "names several objectives, and this search seeks one", "Name one, or use search=pareto."
        raise ConfigError("search.objective", list(objectives), problem, remedy)
    if not is_of_time(objectives[0]):
        problem, remedy = "does not follow from a layout, which is what search=bayes chooses", "Use search=random."
        raise ConfigError("search.objective", objectives[0], problem, remedy)
    return objectives[0]
