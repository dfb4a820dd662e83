"""The points of a sweep with all their measurements: a point is an experiment, and each of its runs is a trial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sweeps.reading import TrialReading, measured_groups, middle_of
from sweeps.repeats.interval import Interval, of_one_run, of_runs, pooled_spread
from train_core.measurement import Performance

MEASURED_PEAK = "measured"
"""The `peak_source` of a peak that was measured beside the trial, by the same matrix product each time."""
NOISY_RATIO = 1.15
"""Runs whose peaks differ by more than this factor did not have the machine for themselves."""


@dataclass(frozen=True)
class MeasuredPoint:
    """One point and what its runs measured.

    Attributes:
        runs: that completed, in the order in which they were asked for.
        middle: the run with the median seconds of a step; of two in the middle, the slower one. All numbers that are
            shown of the point are this run's, so that they belong together.
        seconds: of a step, with the interval in which they lie.
    """

    runs: tuple[TrialReading, ...]
    middle: TrialReading
    seconds: Interval

    @property
    def performance(self) -> Performance:
        assert self.middle.performance is not None
        return self.middle.performance

    @property
    def is_baseline(self) -> bool:
        return any(run.trial.is_baseline for run in self.runs)

    @property
    def label(self) -> str:
        return self.middle.label

    @property
    def rate(self) -> float:
        """Model FLOP/s per device."""
        return self.performance.model_flops_per_second_per_device

    @property
    def rate_bounds(self) -> tuple[float, float]:
        """Lowest and highest model FLOP/s per device in the interval."""
        work = self._work
        return work / self.seconds.high, work / self.seconds.low

    def may_equal(self, other: MeasuredPoint) -> bool:
        """Whether the intervals of the two rates overlap."""
        (low, high), (other_low, other_high) = self.rate_bounds, other.rate_bounds
        return low <= other_high and other_low <= high

    @property
    def _work(self) -> float:
        """Model FLOPs of a step per device."""
        return self.performance.model_flops / self.performance.num_devices


def measured_points(readings: Iterable[TrialReading]) -> list[MeasuredPoint]:
    """Every point that was measured, fastest per device first."""
    groups = measured_groups(readings)
    noise = machine_noise(run.performance for runs in groups for run in runs) or 1.0
    spread = pooled_spread([_seconds(runs) for runs in groups])
    points = []
    for runs in groups:
        middle = middle_of(runs)
        assert middle.performance is not None
        steps = middle.performance.step_seconds_min, middle.performance.step_seconds_max
        interval = of_one_run(*steps, noise) if spread is None else of_runs(_seconds(runs), spread)
        points.append(MeasuredPoint(tuple(runs), middle, interval))
    return sorted(points, key=lambda point: -point.rate)


def machine_noise(performances: Iterable[Performance | None]) -> float | None:
    """By which factor the peaks differ that were measured beside the trials; None where fewer than two were.

    It is the same matrix product every time, so that a factor well above 1 means that something else used the machine.
    """
    peaks = [each.peak_flops_per_second for each in performances if each and each.peak_source == MEASURED_PEAK]
    return max(peaks) / min(peaks) if len(peaks) > 1 else None


def rivals_of(best: MeasuredPoint, points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """The other points whose interval overlaps that of the best, fastest first."""
    return [point for point in points if point is not best and point.may_equal(best)]


def _seconds(runs: Sequence[TrialReading]) -> list[float]:
    return [run.performance.step_seconds for run in runs if run.performance]
