"""A scaling study: one layout on several numbers of devices, each measured several times, against the smallest.

Two laws are fitted to it, each with one number: the share s of the work that more devices do not speed up.
Amdahl 1967 (strong scaling, the work is constant): a step on n times the devices takes s + (1 - s) / n of its time.
Gustafson 1988 (weak scaling, the work grows with the devices): n times the devices do s + (1 - s) n times the work.
Both are linear in s, so that least squares has a closed form.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Literal

from sweeps.reading import TrialReading
from sweeps.repeats.points import MeasuredPoint, measured_points
from sweeps.trial import SweepRecord, Trial

Kind = Literal["weak", "strong"]

ScalingLaw = Literal["Amdahl", "Gustafson"]


@dataclass(frozen=True)
class StudyPoint:
    """One number of devices.

    Attributes:
        factor: devices over those of the baseline.
        efficiency: rate per device over the baseline's; the interval combines that of both.
        utilization: of the ideal, in which every device computes at its peak all the time (MFU).
        shares_devices: there are more ranks than devices, so that the ranks take turns.
    """

    label: str
    num_ranks: int
    num_devices: int
    factor: float
    global_batch_size: int
    step_seconds: float
    speed_up: float
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    utilization: float
    num_runs: int
    shares_devices: bool


@dataclass(frozen=True)
class ScalingStudy:
    """The result of a scaling study, or the prediction for it.

    Attributes:
        points: by number of ranks; the first is the baseline.
        fit: Amdahl's or Gustafson's law, to the points whose ranks have a device each; None without such a point.
        fit_bounds: its share if all efficiencies were at the upper, and at the lower end of their intervals.
    """

    kind: Kind
    points: tuple[StudyPoint, ...]
    fit: LawFit | None
    fit_bounds: tuple[float, float]

    @property
    def last(self) -> StudyPoint:
        """The most devices that ranks have for themselves."""
        return max(self.points, key=lambda point: (not point.shares_devices, point.num_ranks))


def measured_study(record: SweepRecord, results: Sequence[TrialReading]) -> ScalingStudy | None:
    """The study that was measured; None of another sweep, or without its baseline."""
    points = measured_points(results)
    baseline = next((point for point in points if point.is_baseline), None)
    if record.spec.scaling is None or baseline is None:
        return None
    return _study(record.spec.scaling, [_measured_point(point, baseline) for point in points])


def predicted_study(
    record: SweepRecord, trials: Sequence[Trial], without: Collection[int] = frozenset()
) -> ScalingStudy | None:
    """The study on paper, of the plan or of the stand-in; None of another sweep, or without its baseline.

    Args:
        without: numbers of ranks that share devices where they were measured, which is not what is predicted.
    """
    baseline = next((trial for trial in trials if trial.is_baseline and trial.estimate), None)
    if record.spec.scaling is None or baseline is None:
        return None
    first = (trial for trial in trials if trial.infeasible_reason is None and not trial.repeat)
    points = [_predicted_point(trial, baseline) for trial in first if trial.estimate]
    return _study(record.spec.scaling, [point for point in points if point.num_ranks not in without])


def _study(kind: Kind, points: list[StudyPoint]) -> ScalingStudy:
    ordered = tuple(sorted(points, key=lambda point: point.num_ranks))
    own, law = [point for point in ordered if not point.shares_devices], LAWS[kind]
    fit, *ends = (
        law([(point.factor, getattr(point, name)) for point in own])
        for name in ("efficiency", "efficiency_high", "efficiency_low")
    )
    # The higher the efficiencies, the smaller the share that more devices do not speed up.
    low, high = (end.serial_share if end else 0.0 for end in ends)
    return ScalingStudy(kind, ordered, fit, (low, high))


def _measured_point(point: MeasuredPoint, baseline: MeasuredPoint) -> StudyPoint:
    here, base, experiment = point.performance, baseline.performance, point.middle.planned
    # The baseline is 1 by definition, so that its own noise widens the intervals of the others alone.
    efficiency, ranks = point.rate / baseline.rate, experiment.parallel.world_size
    low, high = (1.0, 1.0) if point is baseline else _ratio_bounds(efficiency, point, baseline)
    return StudyPoint(
        label=point.label,
        num_ranks=ranks,
        num_devices=here.num_devices,
        factor=here.num_devices / base.num_devices,
        global_batch_size=experiment.batch.global_batch_size,
        step_seconds=here.step_seconds,
        speed_up=here.tokens_per_second / base.tokens_per_second,
        efficiency=efficiency,
        efficiency_low=low,
        efficiency_high=high,
        utilization=here.model_flops_utilization,
        num_runs=point.seconds.num_runs,
        shares_devices=ranks > here.num_devices,
    )


def _ratio_bounds(ratio: float, point: MeasuredPoint, baseline: MeasuredPoint) -> tuple[float, float]:
    """The interval of a ratio of two rates: on logarithms, independent errors add by their squares."""
    halves = [log(each.seconds.high / each.seconds.low) / 2 for each in (point, baseline)]
    half = sum(value**2 for value in halves) ** 0.5
    return ratio * exp(-half), ratio * exp(half)


def _predicted_point(trial: Trial, baseline: Trial) -> StudyPoint:
    here, base, experiment = trial.predicted, baseline.predicted, trial.planned
    efficiency = here.model_flops_per_second_per_device / base.model_flops_per_second_per_device
    ranks = experiment.parallel.world_size
    return StudyPoint(
        label=experiment.label,
        num_ranks=ranks,
        num_devices=ranks,
        factor=ranks / baseline.planned.parallel.world_size,
        global_batch_size=experiment.batch.global_batch_size,
        step_seconds=here.step_seconds,
        speed_up=here.tokens_per_second / base.tokens_per_second,
        efficiency=efficiency,
        efficiency_low=efficiency,
        efficiency_high=efficiency,
        utilization=here.model_flops_utilization,
        num_runs=0,
        shares_devices=False,
    )


@dataclass(frozen=True)
class LawFit:
    """A law with the share that was fitted.

    Attributes:
        serial_share: s; negative where the speed-up was better than linear.
        num_points: beyond the baseline, to which one number was fitted.
    """

    law: ScalingLaw
    serial_share: float
    num_points: int

    def efficiency(self, factor: float) -> float:
        """Rate per device over the baseline's, on so many times its devices."""
        if self.law == "Amdahl":
            return 1 / (self.serial_share * factor + 1 - self.serial_share)
        return self.serial_share / factor + 1 - self.serial_share


def amdahl(efficiencies: Sequence[tuple[float, float]]) -> LawFit | None:
    """The fit to pairs of a factor of devices and the efficiency there; None without a point beyond the baseline.

    The relative time is 1 / (n E), so that n^-1 (1/E - 1) = s (1 - 1/n).
    """
    pairs = [(1 - 1 / factor, (1 / efficiency - 1) / factor) for factor, efficiency in efficiencies if factor > 1]
    return _fit_law("Amdahl", pairs)


def gustafson(efficiencies: Sequence[tuple[float, float]]) -> LawFit | None:
    """Fit Gustafson's law; the relative throughput is n E, so that n (1 - E) = s (n - 1)."""
    pairs = [(factor - 1, factor * (1 - efficiency)) for factor, efficiency in efficiencies if factor > 1]
    return _fit_law("Gustafson", pairs)


LAWS = {"strong": amdahl, "weak": gustafson}


def _fit_law(law: ScalingLaw, pairs: Sequence[tuple[float, float]]) -> LawFit | None:
    """Least squares of `y = s x` through the origin."""
    if not pairs:
        return None
    # Both laws hold exactly at the baseline, so that the line must pass through it: no intercept is fitted.
    share = sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs)
    return LawFit(law, share, len(pairs))
