"""The certainty of a measured time: a confidence interval from repeats, or of one run the spread of its steps.

Where any point of a sweep was measured more than once, Student's t is applied to the logarithm of the median seconds of
a step. The spread between runs is pooled over all points, as a machine disturbs each of them by a factor; so three runs
of three points say more than three runs of one, and a point that was measured once has an interval too. No interval is
narrower than that of the median of the point's own steps, by their order alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, pi, sqrt
from statistics import fmean, median

from conf.units import count_of

CONFIDENCE = 0.95
MEDIAN_OVER_MEAN = sqrt(pi / 2)
"""The standard error of a median over that of a mean, of many normal values; of one or two values they are the same."""
T_QUANTILES = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131)
"""Student's t at 97.5 % for 1, 2, 3, ... degrees of freedom. Source: any table of the distribution."""
T_OF_MORE = 2.12
"""That of 16 degrees of freedom, for all numbers from there on: at most 8 % too wide."""


@dataclass(frozen=True)
class RepeatInterval:
    """Seconds of a step, between which the true value lies with 95 % confidence where `num_runs` of any point say so.

    Attributes:
        num_runs: of this point.
        method: how the interval was made, in words for people.
    """

    low: float
    high: float
    num_runs: int
    method: str


@dataclass(frozen=True)
class RepeatSpread:
    """Standard deviation between runs, of the logarithm of their seconds or as a share of a loss, and its freedom."""

    deviation: float
    freedom: int


def pooled_spread(points: Sequence[Sequence[float]]) -> RepeatSpread | None:
    """The spread between runs of the same point, pooled over all points; None where no point has two runs."""
    repeated = [[log(seconds) for seconds in runs] for runs in points if len(runs) > 1]
    freedom = sum(len(runs) - 1 for runs in repeated)
    if not freedom:
        return None
    # Each point's runs are compared with their own mean, which costs a degree of freedom for each point.
    squares = sum((value - fmean(runs)) ** 2 for runs in repeated for value in runs)
    return RepeatSpread(sqrt(squares / freedom), freedom)


def of_runs(runs: Sequence[float], spread: RepeatSpread) -> RepeatInterval:
    """The interval of the median of one or more runs."""
    error = spread.deviation / sqrt(len(runs)) * (MEDIAN_OVER_MEAN if len(runs) > 2 else 1.0)
    middle, half = median(log(seconds) for seconds in runs), t_quantile(spread.freedom) * error
    freedom = f"{count_of(spread.freedom, 'degree')} of freedom"
    method = f"95 % by Student's t on log seconds, the spread between runs pooled over all points ({freedom})"
    return RepeatInterval(exp(middle - half), exp(middle + half), len(runs), method)


def of_one_run(fastest: float, slowest: float, noise: float, num_runs: int = 1) -> RepeatInterval:
    """Return the interval of a point without repeats: from its fastest to its slowest step, widened by noise.

    Args:
        noise: by which factor the peaks vary that were measured beside the runs; 1.0 where none were.
        num_runs: more than one where all of them were disturbed.
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
