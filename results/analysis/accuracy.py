"""The accuracy of predictions in numbers: errors of a quantity, and whether the order was right."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST_RANKED = 3
"""Two trials have only two orders, one of which is right by chance."""


@dataclass(frozen=True)
class ErrorStatistics:
    """Errors of several predictions, as shares of the measurements.

    Attributes:
        median: of the errors' sizes, whatever their sign; `mean` and `worst` likewise.
        bias: the geometric mean of predicted over measured, less one; negative where too little is predicted.
    """

    count: int
    median: float
    mean: float
    worst: float
    bias: float


@dataclass(frozen=True)
class RankCorrelation:
    """The agreement of two orders: 1 is the same order, 0 is chance, -1 the reverse.

    Attributes:
        kendall: tau-b, the share of pairs in the right order less that of pairs in the wrong one; ties count for
            neither.
        spearman: rho, the correlation of the ranks.
        kendall_chance: how probable so large a tau would be if there were no relation.
    """

    count: int
    kendall: float
    kendall_chance: float
    spearman: float


def error_of(predicted: float, measured: float) -> float:
    """Return the share of the measurement by which the prediction is above it (+) or below it (-)."""
    return predicted / measured - 1.0


def error_statistics(pairs: Sequence[tuple[float, float]]) -> ErrorStatistics | None:
    """The statistics of pairs of a prediction and a measurement; None where no pair has two positive numbers."""
    valid = [(predicted, measured) for predicted, measured in pairs if _is_positive(predicted, measured)]
    if not valid:
        return None
    sizes = [abs(error_of(*pair)) for pair in valid]
    # A prediction of half and one of twice the time are equally wrong, so that their logarithms cancel out.
    logarithms = [math.log(predicted / measured) for predicted, measured in valid]
    return ErrorStatistics(
        count=len(valid),
        median=statistics.median(sizes),
        mean=statistics.fmean(sizes),
        worst=max(sizes),
        bias=math.expm1(statistics.fmean(logarithms)),
    )


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> RankCorrelation | None:
    """The agreement of the order as predicted with that as measured; None of fewer than three trials, or all equal."""
    valid = [(predicted, measured) for predicted, measured in pairs if _is_positive(predicted, measured)]
    predicted, measured = [pair[0] for pair in valid], [pair[1] for pair in valid]
    rho = spearman(predicted, measured)
    if rho is None:  # nor is tau defined then
        return None
    from scipy import stats  # takes longer to load than most reports take to write

    kendall = stats.kendalltau(predicted, measured)
    return RankCorrelation(len(valid), float(kendall.statistic), float(kendall.pvalue), rho)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's correlation; None of fewer than three pairs, and where all values of one side are equal."""
    if len(first) < FEWEST_RANKED:
        return None
    x, y = _ranks(first), _ranks(second)
    middle = (len(x) + 1) / 2
    spread = sum((a - middle) ** 2 for a in x) * sum((b - middle) ** 2 for b in y)
    together = sum((a - middle) * (b - middle) for a, b in zip(x, y, strict=True))
    return None if spread == 0 else together / spread**0.5


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, from 1 upwards. Equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value) + 1) / 2 for value in values]


def _is_positive(*values: float) -> bool:
    return all(math.isfinite(value) and value > 0 for value in values)
