"""The measured points of a sweep and their runs: which runs were disturbed, which count, and how the points rank."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from copy import copy
from math import log, sqrt

from sweeps.reading import TrialReading
from sweeps.steadiness import disturbed_runs, late_ones
from train_core.measurement import Performance

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


def ranking_of(readings: Sequence[TrialReading]) -> list[TrialReading]:
    """The points that were measured, each by its middle run: the most model FLOP/s per device first.

    Points of which every run was disturbed come last, as nobody knows how fast they are.
    """
    disturbed = disturbances(readings)
    middles = [middle_of(counted_runs(runs, disturbed)) for runs in measured_groups(readings)]
    return sorted(middles, key=lambda middle: (middle.trial.trial_id in disturbed, _negative_rate(middle)))


def measured_groups(readings: Iterable[TrialReading]) -> list[list[TrialReading]]:
    """The trials that measured something, those of the same experiment by the same code together.

    What another version of the trainer measured is another point: the difference is no noise.
    """
    groups: dict[tuple[str, str], list[TrialReading]] = {}
    for reading in readings:
        if reading.performance and reading.experiment and not reading.trial.stage:
            groups.setdefault((reading.experiment.fingerprint, reading.code), []).append(reading)
    return list(groups.values())


def disturbances(readings: Iterable[TrialReading]) -> dict[str, str]:
    """Map the ids of trials to what disturbed their run; steady runs are left out."""
    measured = [each for each in readings if each.performance and not each.trial.stage]
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
    told = [(each.trial.trial_id, _mark(each), is_late) for (each, _), is_late in zip(known, flags, strict=True)]
    in_time = {mark for _, mark, is_late in told if not is_late}
    return {trial_id: LATE for trial_id, mark, is_late in told if is_late and mark in in_time}


def _mark(reading: TrialReading) -> str:
    return reading.experiment.fingerprint if reading.experiment else ""


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
    faster = sqrt(_seconds(middle) / _seconds(before))
    mean = copy(middle)
    known = middle.measurement.model_copy(update={"performance": _at(middle.performance, faster)})
    mean.__dict__["measurement"] = known
    return mean


def _at(performance: Performance, faster: float) -> Performance:
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


def _negative_rate(reading: TrialReading) -> float:
    return -reading.performance.model_flops_per_second_per_device if reading.performance else 0.0
