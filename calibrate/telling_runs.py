"""The runs that would say most of a cluster's constants: five that are chosen well say nearly what all would.

Runs are taken one after another, each the one whose step is least certain once those before it are known: constants are
as uncertain as their spreads say, and a run reveals one combination of them. This is the greedy D-optimal design.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrate.refit_cluster import CONSTANTS, FinishedTrial, log_ratios, present_values
from calibrate.robust_fit import Floats, slopes
from conf.cluster_spec import ClusterSpec

NUM_RUNS = 5
NOISE = 0.01
"""Assumed: what is left of a measured step, as a share, once all constants are right."""


def telling_runs(cluster: ClusterSpec, trials: Sequence[FinishedTrial], count: int = NUM_RUNS) -> list[int]:
    """Indices of the trials to measure first, the most telling one first; their measured times are not looked at."""
    present = present_values(cluster.efficiency)
    return most_telling(slopes(log_ratios(cluster, trials), CONSTANTS, present), count)


def most_telling(slope: Floats, count: int = NUM_RUNS) -> list[int]:
    """Indices of `count` rows, or of all where there are fewer.

    Args:
        slope: how the logarithm of each predicted step changes with a spread of each constant, (n, constants).
    """
    chosen: list[int] = []
    left = slope @ slope.T  # covariance of the logarithms of the steps, (n, n)
    for _ in range(min(count, len(slope))):
        unknown = np.diag(left).copy()
        unknown[chosen] = -1.0
        best = int(np.argmax(unknown))
        chosen.append(best)
        left = left - np.outer(left[:, best], left[best]) / (left[best, best] + NOISE**2)
    return chosen
