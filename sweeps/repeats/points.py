"""The points of a sweep with all their measurements: a point is an experiment, and each of its runs is a trial."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweeps.reading import TrialReading
from sweeps.repeats.interval import RepeatInterval, RepeatSpread, of_one_run, of_runs, pooled_spread, with_own_steps
from sweeps.repeats.ranking import LEAST_RATIO, MEASURED_PEAK, counted_runs, disturbances, measured_groups, middle_of
from train_core.measurement import Performance

NOISY_RATIO = LEAST_RATIO
"""Runs whose peaks differ by more than this factor did not have the machine for themselves."""


@dataclass(frozen=True)
class MeasuredPoint:
    """One point and what its runs measured.

    Attributes:
        runs: that completed, in the order in which they were asked for.
        middle: `ranking.middle_of` the runs that count: the steady ones, where any is. All numbers that are
            shown of the point are this run's, so that they belong together.
        seconds: of a step, with the interval in which they lie.
        disturbed: what disturbed its runs, where none of them was steady; else empty.
    """

    runs: tuple[TrialReading, ...]
    middle: TrialReading
    seconds: RepeatInterval
    disturbed: str = ""

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
        """True if the intervals of the two rates overlap."""
        (low, high), (other_low, other_high) = self.rate_bounds, other.rate_bounds
        return low <= other_high and other_low <= high

    @property
    def _work(self) -> float:
        """Model FLOPs of a step per device."""
        return self.performance.model_flops / self.performance.num_devices


def measured_points(readings: Iterable[TrialReading]) -> list[MeasuredPoint]:
    """Every point that was measured, fastest per device first; those with disturbed runs alone after all others."""
    groups = measured_groups(readings)
    disturbed = disturbances(run for runs in groups for run in runs)
    counted = [counted_runs(runs, disturbed) for runs in groups]
    noise = machine_noise(run.performance for runs in groups for run in runs) or 1.0
    steady = [runs for runs in counted if runs[0].trial.trial_id not in disturbed]
    spread = pooled_spread([_seconds(runs) for runs in steady])
    points = [_point(runs, counting, disturbed, spread, noise) for runs, counting in zip(groups, counted, strict=True)]
    return sorted(points, key=lambda point: (bool(point.disturbed), -point.rate))


def _point(
    runs: Sequence[TrialReading],
    counting: Sequence[TrialReading],
    disturbed: Mapping[str, str],
    spread: RepeatSpread | None,
    noise: float,
) -> MeasuredPoint:
    why = disturbed.get(counting[0].trial.trial_id, "")
    known = [run.performance for run in counting if run.performance]
    slowest, fastest = max(each.step_seconds_max for each in known), min(each.step_seconds_min for each in known)
    if spread is None or why:
        interval = of_one_run(fastest, slowest, noise, len(known))
    else:
        steps = [seconds for run in counting for seconds in run.timed_seconds]
        interval = with_own_steps(of_runs(_seconds(counting), spread), steps)
    return MeasuredPoint(tuple(runs), middle_of(counting), interval, why)


def places(points: Sequence[MeasuredPoint]) -> list[str]:
    """The place of every point: one more than points are surely faster, and `=` where another may be as fast.

    A point that was measured by disturbed runs alone has no place, and takes nobody's.
    """
    return places_by_bounds([None if point.disturbed else point.rate_bounds for point in points])


def places_by_bounds(bounds: Sequence[tuple[float, float] | None]) -> list[str]:
    """The same by the lowest and the highest value of each, of which more is better; None has no place."""
    known = [each for each in bounds if each is not None]
    lows, highs = sorted(low for low, _ in known), sorted(high for _, high in known)
    return ["" if each is None else _place(each, lows, highs) for each in bounds]


def _place(bounds: tuple[float, float], lows: Sequence[float], highs: Sequence[float]) -> str:
    low, high = bounds
    num_faster, num_slower = len(lows) - bisect_right(lows, high), bisect_left(highs, low)
    return f"{num_faster + 1}{'=' if num_faster + num_slower + 1 < len(lows) else ''}"


def machine_noise(performances: Iterable[Performance | None]) -> float | None:
    """Return the factor between the peaks that were measured beside the trials; None of fewer than two.

    It is the same matrix product every time, so that a factor well above 1 means that something else used the machine.
    """
    peaks = [each.peak_flops_per_second for each in performances if each and each.peak_source == MEASURED_PEAK]
    return max(peaks) / min(peaks) if len(peaks) > 1 else None


def rivals_of(best: MeasuredPoint, points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """The other points whose interval overlaps that of the best, fastest first; all where the best was disturbed."""
    return [point for point in points if point is not best and (best.disturbed or point.may_equal(best))]


def _seconds(runs: Sequence[TrialReading]) -> list[float]:
    return [run.performance.step_seconds for run in runs if run.performance]
