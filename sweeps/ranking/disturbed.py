"""The runs of measured points: which were disturbed, which count, and which one stands for its point.

Disturbed runs: two speeds and a drift are found by the share of the variance of log seconds that two clusters or a line
explain; a run that was disturbed otherwise has more variance than the runs beside it. Each is held against what chance
alone makes of as many normal values (a Monte Carlo test, as nothing is tabulated for so few). Source: L. Engelman and
J. A. Hartigan, "Percentage Points of a Test for Clusters", Journal of the American Statistical Association 64 (1969),
for the clusters; the line is that of least squares."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from copy import copy
from functools import lru_cache
from math import log, sqrt
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from conf.grouped import grouped
from conf.types.model_spec import ModelSpec
from sweeps.reading import TrialReading
from train_core.trial.measurement import Performance

OTHER_MODEL = "of another model, which an earlier command asked for"
MEASURED_PEAK = "measured"
"""The `peak_source` of a peak that was measured beside the trial, by the same matrix product each time."""
LATE = "it was far later than predicted, and another run of its point was not"
PEAK_TOO_LOW = "its peak was measured below its own rate"
RATES = (
    "tokens_per_second",
    "model_flops_per_second_per_device",
    "hardware_flops_per_second_per_device",
    "model_flops_utilization",
    "hardware_flops_utilization",
)
"""What of a performance goes with one over the seconds of a step."""


def measured_groups(readings: Iterable[TrialReading]) -> list[list[TrialReading]]:
    """The trials that measured something, those of the same experiment by the same code together.

    What another version of the trainer measured is another point: the difference is no noise.
    """
    measured = filter(has_measured_point, readings)
    return list(grouped(measured, lambda each: (each.planned.fingerprint, each.code)).values())


def has_measured_point(reading: TrialReading) -> bool:
    """True if it measured a point of the sweep; a later stage is none."""
    return bool(reading.performance and reading.experiment and not reading.trial.stage)


def of_other_models(readings: Iterable[TrialReading]) -> dict[str, str]:
    """Why trials have no place, by id: an earlier command left them, and no present one is of their model."""
    known = [(each.trial, each.experiment.model) for each in readings if each.experiment]
    left = {trial.trial_id: _without_name(model) for trial, model in known if trial.role == "kept"}
    if not left:  # as in most sweeps, whose models need not be compared each time that points are ranked
        return {}
    sought = {_without_name(model) for trial, model in known if trial.role != "kept"}
    return {trial_id: OTHER_MODEL for trial_id, model in left.items() if sought and model not in sought}


def _without_name(model: ModelSpec) -> ModelSpec:
    """The model as it is compared: two files may describe the same one."""
    return model.model_copy(update={"name": ""})


def disturbances(readings: Iterable[TrialReading]) -> dict[str, str]:
    """Map the ids of trials to what disturbed their run; steady runs are left out."""
    measured = [each for each in readings if each.performance and each.performance.is_timed and not each.trial.stage]
    by_steps = disturbed_runs([each.timed_seconds for each in measured])
    found = ((each.trial.trial_id, why or _peak_fault(each)) for each, why in zip(measured, by_steps, strict=True))
    disturbed = {trial_id: why for trial_id, why in found if why}
    return disturbed | _late_runs([each for each in measured if each.trial.trial_id not in disturbed])


def lateness(reading: TrialReading) -> float | None:
    """The logarithm of measured over predicted seconds of a step; None where one of them is not known."""
    estimate = reading.trial.estimate
    return log(_seconds(reading) / estimate.step_seconds) if estimate and reading.performance else None


def _late_runs(steady: Sequence[TrialReading]) -> dict[str, str]:
    """The runs that were far later than all others and than another run of their point: no fault of the point's."""
    known = [(each, late) for each in steady if each.experiment and (late := lateness(each)) is not None]
    flags = late_ones([late for _, late in known])
    told = [(each.trial.trial_id, each.trial.mark, is_late) for (each, _), is_late in zip(known, flags, strict=True)]
    in_time = {mark for _, mark, is_late in told if not is_late}
    return {trial_id: LATE for trial_id, mark, is_late in told if is_late and mark in in_time}


def counted_runs(runs: Sequence[TrialReading], disturbed: Container[str]) -> list[TrialReading]:
    """The runs of a point that say how fast it is: the steady ones, or all where none was steady."""
    return [run for run in runs if run.trial.trial_id not in disturbed] or list(runs)


def middle_of(runs: Sequence[TrialReading]) -> TrialReading:
    """The run with the median seconds of a step; of two in the middle the slower, its times the mean of both (of logs).

    So every table, verdict and ranking that shows it shows the same, and a point that was measured twice does not fall
    behind for it.
    """
    slowest_last = sorted(runs, key=_seconds)
    middle, before = slowest_last[len(runs) // 2], slowest_last[(len(runs) - 1) // 2]
    if middle is before or middle.measurement is None or middle.performance is None:
        return middle
    # Half of the distance in logarithms, which is the root of the ratio.
    faster = sqrt(_seconds(middle) / _seconds(before))
    mean = copy(middle)
    known = middle.measurement.model_copy(update={"performance": _with_faster_step(middle.performance, faster)})
    mean.__dict__["measurement"] = known
    return mean


def _with_faster_step(performance: Performance, faster: float) -> Performance:
    """The same with a step that is faster by a factor; its fastest and slowest step, memory and energy stay."""
    rates = {name: getattr(performance, name) * faster for name in RATES}
    return performance.model_copy(update={"step_seconds": performance.step_seconds / faster, **rates})


def _peak_fault(reading: TrialReading) -> str:
    performance = reading.performance
    if performance is None or performance.peak_source != MEASURED_PEAK:
        return ""
    return PEAK_TOO_LOW if performance.model_flops_utilization > 1.0 else ""


def _seconds(reading: TrialReading) -> float:
    return reading.performance.step_seconds if reading.performance else 0.0


LEAST_STEPS = 5
"""Of fewer steps nothing is said."""
LEAST_RUNS = 5
"""Of fewer runs nobody knows what spread is usual on their machine."""
CHANCE = 0.01
"""How often each test calls steady steps disturbed, before `LEAST_RATIO` spares most of them."""
LEAST_RATIO = 1.15
"""Steps or peaks that differ by a smaller factor are a quiet machine's: intervals hold what they do."""
NUM_DRAWN = 20_000
MOST_DRAWN_STEPS = 60
"""What chance explains falls with the number of steps, so that the bounds of so many hold for more too."""
TWO_SPEEDS = "its steps ran at two speeds"
DRIFT = "its steps drifted"
WIDE = "its steps spread wider than those of the other runs"

FARTHEST = 3.5
"""Of the modified z-score, beyond which a value is an outlier. Source: B. Iglewicz and D. C. Hoaglin, "How to Detect
and Handle Outliers" (1993), who give 0.6745 too."""
NORMAL = 0.6745
"""The median absolute deviation of normal values over their standard deviation."""

Table = NDArray[numpy.float64]


class ChanceBounds(NamedTuple):
    """The values that chance alone exceeds with the probability `CHANCE`, of so many steps.

    Attributes:
        cluster_share, line_share: of the variance.
        variance: over the usual one, which is the median of many runs.
        usual_variance: of steps whose logarithms have a standard deviation of 1.
    """

    cluster_share: float
    line_share: float
    variance: float
    usual_variance: float


def disturbed_runs(runs: Sequence[Sequence[float]]) -> list[str]:
    """Return what disturbed each run, in words for people; empty if its steps are those of a steady machine.

    The slowest of every ten steps is left aside: a page fault or a garbage collection says nothing of the others.

    Args:
        runs: the seconds of the timed steps of each, in their order.
    """
    kept = [_without_slowest(numpy.log([run])) if len(run) >= LEAST_STEPS else None for run in runs]
    deviations = [
        float(steps.var()) / _bounds(len(run)).usual_variance
        for run, steps in zip(runs, kept, strict=True)
        if steps is not None
    ]
    usual = float(numpy.median(deviations)) if len(deviations) >= LEAST_RUNS else None
    return [
        "" if steps is None else _disturbance(steps, len(run), usual) for run, steps in zip(runs, kept, strict=True)
    ]


def late_ones(lateness: Sequence[float]) -> list[bool]:
    """Mark the values that lie far above the others; none of fewer than `LEAST_RUNS`.

    Nothing makes a machine faster than it is, so that low ones are none of them.

    Args:
        lateness: the logarithm of measured over predicted seconds of a step.
    """
    if len(lateness) < LEAST_RUNS:
        return [False] * len(lateness)
    middle = float(numpy.median(lateness))
    # Medians instead of means, because a few late runs would move the mean and the deviation that they are held
    # against.
    deviation = float(numpy.median(numpy.abs(numpy.asarray(lateness) - middle))) / NORMAL
    bound = max(FARTHEST * deviation, float(numpy.log(LEAST_RATIO)))
    return [late - middle > bound for late in lateness]


def _disturbance(kept: Table, num_steps: int, usual: float | None) -> str:
    """Return what disturbed one run, held against the usual variance of this machine; empty if nothing did."""
    if float(kept.max() - kept.min()) < numpy.log(LEAST_RATIO):
        return ""
    bounds = _bounds(num_steps)
    if float(_line_share(kept)[0]) > bounds.line_share:
        return DRIFT
    if float(_cluster_share(kept)[0]) > bounds.cluster_share:
        return TWO_SPEEDS
    is_wide = usual is not None and float(kept.var()) > bounds.variance * bounds.usual_variance * usual
    return WIDE if is_wide else ""


def _without_slowest(samples: Table) -> Table:
    """Every row without the slowest of its values, the others in their order."""
    num_kept = samples.shape[1] - max(1, samples.shape[1] // 10)
    chosen = numpy.sort(numpy.argsort(samples, axis=1, kind="stable")[:, :num_kept], axis=1)
    return numpy.take_along_axis(samples, chosen, axis=1)


def _cluster_share(samples: Table) -> Table:
    """The share of each row's variance that lies between two clusters, where it is divided for the largest share."""
    # Around the mean the lower cluster's sum is S and the upper one's -S, so that between them lie S^2 / below and
    # S^2 / (size - below), which together are S^2 size / (below (size - below)).
    ordered = numpy.sort(samples - samples.mean(axis=1, keepdims=True), axis=1)
    size, below = samples.shape[1], numpy.arange(1, samples.shape[1])
    between = numpy.cumsum(ordered, axis=1)[:, :-1] ** 2 * size / (below * (size - below))
    return between.max(axis=1) / (ordered**2).sum(axis=1)


def _line_share(samples: Table) -> Table:
    """The share of each row's variance that a straight line over its order explains."""
    # The square of the correlation with the place, both centred.
    centred = samples - samples.mean(axis=1, keepdims=True)
    place = numpy.arange(samples.shape[1]) - (samples.shape[1] - 1) / 2
    return (centred @ place) ** 2 / ((place**2).sum() * (centred**2).sum(axis=1))


def _bounds(num_steps: int) -> ChanceBounds:
    return _drawn_bounds(min(num_steps, MOST_DRAWN_STEPS))


@lru_cache(maxsize=MOST_DRAWN_STEPS)
def _drawn_bounds(num_steps: int) -> ChanceBounds:
    # The seed is the number of steps, so that the same steps always get the same verdict.
    drawn = _without_slowest(numpy.random.default_rng(num_steps).standard_normal((NUM_DRAWN, num_steps)))
    variance = drawn.var(axis=1)
    usual = float(numpy.median(variance))
    shares = _cluster_share(drawn), _line_share(drawn), variance / usual
    clusters, line, wide = (float(numpy.quantile(each, 1 - CHANCE)) for each in shares)
    return ChanceBounds(clusters, line, wide, usual)
