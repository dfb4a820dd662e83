"""The interval of a measured value, how far runs of one point lie apart, and the places that follow from intervals.

A measured time is as sure as a confidence interval from repeats says, or of one run the spread of its steps. Where any
point of a sweep was measured more than once, Student's t is applied to the logarithm of the median seconds of a step.
The spread between runs is pooled over all points, as a machine disturbs each of them by a factor; so three runs of
three points say more than three runs of one, and a point that was measured once has an interval too. No interval is
narrower than that of the median of the point's own steps, by their order alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log, pi, sqrt
from operator import itemgetter
from statistics import fmean, median

from conf.units import count_of
from sweeps.ranking.disturbed import LEAST_RATIO, MEASURED_PEAK
from train_core.trial.measurement import Performance

CONFIDENCE = 0.95
MEDIAN_OVER_MEAN = sqrt(pi / 2)
"""The standard error of a median over that of a mean, of many normal values; of one or two values they are the same."""
T_QUANTILES = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131)
"""Student's t at 97.5 % for 1, 2, 3, ... degrees of freedom. Source: any table of the distribution."""
T_OF_MORE = 2.12
"""That of 16 degrees of freedom, for all numbers from there on: at most 8 % too wide."""
WIDEST = 100.0
"""A wider interval of a logarithm says no less, and its ends would be no numbers."""

NOISY_RATIO = LEAST_RATIO
"""Runs whose peaks differ by more than this factor did not have the machine for themselves."""


@dataclass(frozen=True)
class RepeatInterval:
    """Seconds of a step, between which the true value lies with 95 % confidence where the runs of any point say so."""

    low: float
    high: float
    num_runs: int
    method: str


@dataclass(frozen=True)
class RepeatSpread:
    """How far the runs of a point lie apart.

    Attributes:
        deviation: standard deviation, of the logarithm of their values or as a share of their mean.
        freedom: its degrees of freedom.
    """

    deviation: float
    freedom: int
    is_of_logarithm: bool = True

    def around(self, value: float, num_runs: int) -> tuple[float, float]:
        """The interval of a value that is the mean of so many runs."""
        half = t_quantile(self.freedom) * self.deviation / sqrt(num_runs)
        if not self.is_of_logarithm:
            return value - half * _scale(value), value + half * _scale(value)
        factor = exp(min(half, WIDEST))
        return value / factor, value * factor


def pooled_spread(points: Sequence[Sequence[float]]) -> RepeatSpread | None:
    """The spread between runs of the same point, pooled over all points; None where no point has two runs.

    What is positive spreads by factors; of anything else, deviations are shares of the mean.
    """
    freedom = sum(len(runs) - 1 for runs in points)
    if not freedom:
        return None
    by_log = all(value > 0 for runs in points for value in runs)
    if by_log:
        points = [list(map(log, runs)) for runs in points]
    # Each point's runs are compared with their own mean, which costs a degree of freedom for each point.
    means = [(runs, fmean(runs)) for runs in points]
    shares = (((value - mean) / (1.0 if by_log else _scale(mean))) ** 2 for runs, mean in means for value in runs)
    return RepeatSpread(sqrt(sum(shares) / freedom), freedom, by_log)


def _scale(mean: float) -> float:
    """What a deviation is a share of: the mean, and of a mean of 0, which has no shares, 1."""
    return abs(mean) or 1.0


def of_runs(runs: Sequence[float], spread: RepeatSpread) -> RepeatInterval:
    """The interval of the median of one or more runs."""
    error = spread.deviation / sqrt(len(runs)) * (MEDIAN_OVER_MEAN if len(runs) > 2 else 1.0)
    middle, half = median(log(seconds) for seconds in runs), t_quantile(spread.freedom) * error
    freedom = f"{count_of(spread.freedom, 'degree')} of freedom"
    method = f"95 % by Student's t on log seconds, the spread between runs pooled over all points ({freedom})"
    return RepeatInterval(exp(middle - half), exp(middle + half), len(runs), method)


def of_one_run(fastest: float, slowest: float, noise: float, num_runs: int = 1) -> RepeatInterval:
    """Return the interval of a point without repeats: from its fastest to its slowest step, widened by noise.

    The noise is the factor by which the peaks vary that were measured beside the runs; 1 where none were. Where there
    are several runs, all of them were disturbed.
    """
    # A run met the machine somewhere between its best and its worst moment, and nobody knows where.
    widened = f", widened by the noise x{noise:.2g}" if noise > 1.0 else ""
    of = "the one run" if num_runs == 1 else f"its {num_runs} runs, all of which were disturbed"
    method = f"from the fastest to the slowest step of {of}{widened}"
    return RepeatInterval(fastest / sqrt(noise), slowest * sqrt(noise), num_runs, method)


def with_own_steps(interval: RepeatInterval, seconds: Sequence[float]) -> RepeatInterval:
    """The interval, as wide at least as that of the median of the timed steps of all runs.

    Source: the interval by order statistics, which takes no distribution for granted; W. J. Conover, "Practical
    Nonparametric Statistics". Of fewer than six steps it is from the fastest to the slowest.
    """
    if not seconds:
        return interval
    ordered = sorted(seconds)
    aside = _num_aside(len(ordered))
    low, high = ordered[aside], ordered[-1 - aside]
    if interval.low <= low and high <= interval.high:
        return interval
    method = f"{interval.method}, or by the order of its own steps where these vary more"
    return RepeatInterval(min(interval.low, low), max(interval.high, high), interval.num_runs, method)


def _num_aside(num_steps: int) -> int:
    """Count the steps to leave out at either end for an interval of their median with 95 % confidence."""
    # Each binomial coefficient follows from the one before, in logarithms, because those of many steps are huge.
    outside, aside, log_share = 0.0, 0, -num_steps * log(2)
    while True:
        outside += 2 * exp(log_share)
        if outside > 1 - CONFIDENCE:
            return max(0, aside - 1)
        log_share += log((num_steps - aside) / (aside + 1))
        aside += 1


def t_quantile(freedom: int) -> float:
    """Student's t at 97.5 %; beyond the table a little too large, so that intervals err on the wide side."""
    return T_QUANTILES[freedom - 1] if freedom <= len(T_QUANTILES) else T_OF_MORE


def overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def places_by_bounds(bounds: Sequence[tuple[float, float] | None]) -> list[str]:
    """The places by the lowest and the highest value of each, of which more is better, best first; None has no place.

    All that may be as good as the first share its place, and the best of the others has the next, by its number in the
    order: 1=, 1=, 1=, 4. `=` marks every one that some other may equal.
    """
    known = [each for each in bounds if each is not None]
    lows, highs = sorted(low for low, _ in known), sorted(high for _, high in known)
    # No two leaders overlap, so that one order is that of their lowest and of their highest values. Of thousands those
    # that overlap an interval are found by halves, as to compare it with each takes seconds.
    leaders, shared = list[tuple[float, float, int]](), list[int]()
    for number, (low, high) in enumerate(known, start=1):
        first, end = bisect_left(leaders, low, key=itemgetter(1)), bisect_right(leaders, high, key=itemgetter(0))
        if first == end:
            leaders.insert(first, (low, high, number))
        shared.append(min((leader for _, _, leader in leaders[first:end]), default=number))
    marks = iter(f"{place}{_mark(each, lows, highs)}" for place, each in zip(shared, known, strict=True))
    return ["" if each is None else next(marks) for each in bounds]


def _mark(bounds: tuple[float, float], lows: Sequence[float], highs: Sequence[float]) -> str:
    low, high = bounds
    num_better, num_worse = len(lows) - bisect_right(lows, high), bisect_left(highs, low)
    return "=" if num_better + num_worse + 1 < len(lows) else ""


def machine_noise(performances: Iterable[Performance | None]) -> float | None:
    """Return the factor between the peaks that were measured beside the trials; None of fewer than two.

    It is the same matrix product every time, so that a factor well above 1 means that something else used the machine.
    """
    peaks = [each.peak_flops_per_second for each in performances if each and each.peak_source == MEASURED_PEAK]
    return max(peaks) / min(peaks) if len(peaks) > 1 else None
