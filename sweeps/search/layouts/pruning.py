"""The choice of running trials that are clearly slower than the best after their first timed steps."""

from __future__ import annotations

from math import exp, log, log1p

import numpy as np

from sweeps.search.layouts.observed import Observed, timed_seconds
from sweeps.search.searcher import Pruning
from train_core.costs.setting import Floats
from train_core.measurement import Outcome

FEWEST_STEPS = 2  # timed steps before a trial is judged
CLEARLY = 0.10  # several times what measurements of one plan differ by


def clearly_slower(observed: Observed, to_cost: Floats) -> list[Pruning]:
    """Running trials of which even the fastest timed step costs more than the best by that share.

    Args:
        to_cost: what to add to the logarithm of a step's seconds to have that of its cost, of each trial.
    """
    costs = np.log(observed.seconds) + to_cost
    ended = [number for number, one in enumerate(observed.readings) if one.outcome is Outcome.COMPLETED]
    if not ended:
        return []
    best = min(ended, key=lambda number: float(costs[number]))
    found = [_judge(observed, number, float(costs[best] - to_cost[number])) for number in observed.running]
    return [pruning for pruning in found if pruning is not None]


def _judge(observed: Observed, number: int, best_log_seconds: float) -> Pruning | None:
    """The trial's pruning, if its steps are clearly slower than the best's.

    Args:
        best_log_seconds: logarithm of the seconds with which this trial would be as good as the best.
    """
    reading = observed.readings[number]
    steps = timed_seconds(reading)
    # Everything else is stated against the baseline, and a trial at its last step saves nothing.
    if reading.trial.is_baseline or len(steps) < FEWEST_STEPS or reading.steps[-1].step >= reading.steps[-1].num_steps:
        return None
    # The fastest step is taken, because whatever disturbs a step can only make it longer.
    behind = log(min(steps)) - best_log_seconds
    if behind <= log1p(CLEARLY):
        return None
    because = f"its {len(steps)} timed steps are {exp(behind) - 1:.0%} slower than the best or more"
    return Pruning(reading.trial.trial_id, because)
