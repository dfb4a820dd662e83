"""Scaling efficiency: what is left of the baseline's throughput per device when more devices do the work.

Strong scaling holds the global batch constant, weak scaling the batch per device; which one a pair of trials shows is
read from their batches. Where two trials are not comparable the answer is None with the reason, never a number.

A scaling study is one layout on several numbers of devices, each measured several times, against the smallest. Two laws
are fitted to it, each with one number: the share s of the work that more devices do not speed up.
Amdahl 1967 (strong scaling, the work is constant): a step on n times the devices takes s + (1 - s) / n of its time.
Gustafson 1988 (weak scaling, the work grows with the devices): n times the devices do s + (1 - s) n times the work.
Both are linear in s, so that least squares has a closed form.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Literal

from conf.plan.experiment import Experiment
from conf.units import count_of
from costs import Estimate
from sweeps.ranking.disturbed import counted_runs, disturbances, middle_of
from sweeps.ranking.points import MeasuredPoint, ranked_points
from sweeps.reading import TrialReading
from sweeps.trial import SweepRecord, Trial
from train_core.trial.measurement import Performance

ScalingKind = Literal["baseline", "strong", "weak", "layout"]
Kind = Literal["weak", "strong"]
ScalingLaw = Literal["Amdahl", "Gustafson"]
COSTS_OF_A_TOKEN = frozenset({"precision", "recompute"})


@dataclass(frozen=True)
class Scaling:
    """One trial against the declared baseline.

    Attributes:
        kind: `layout` compares two layouts on equally many devices, which is not scaling; None: efficiency would say
            nothing, though tokens per second may.
        efficiency: model FLOP/s per device over the baseline's; 1.0 is perfect.
        speed_up: tokens per second over the baseline's, all devices together.
        note: what is held constant, or why there is no number.
        held_constant: the same without the numbers of devices; empty where nothing is.
        efficiency_bounds: the interval of the efficiency, which combines those of both rates; None where it is unknown.
    """

    note: str
    kind: ScalingKind | None = None
    efficiency: float | None = None
    speed_up: float | None = None
    held_constant: str = ""
    efficiency_bounds: tuple[float, float] | None = None


def scalings(results: Sequence[TrialReading]) -> list[Scaling]:
    """The scaling of every result against the middle run of the sweep's baseline, in the same order."""
    declared = next((result for result in results if result.trial.is_baseline), None)
    runs = [each for each in results if declared and each.performance and _are_one_point(each, declared)]
    baseline = middle_of(counted_runs(runs, disturbances(results))) if runs else declared
    return [scaling(result, baseline) for result in results]


def scaling(result: TrialReading, baseline: TrialReading | None) -> Scaling:
    """Compare `result` with `baseline`; only layout and batch may differ."""
    if result.trial.stage:
        return Scaling("a stage that follows a trial")
    if baseline is None:
        return Scaling("the sweep declares no baseline that can exist")
    if baseline.performance is None or baseline.trial.experiment is None:
        return Scaling("the baseline has not been measured")
    if result.performance is None or result.trial.experiment is None:
        return Scaling("not measured")
    devices = count_of(result.performance.num_devices, "device")
    if result.trial.trial_id == baseline.trial.trial_id:
        return Scaling(f"the baseline: {devices}", "baseline", 1.0, 1.0)
    if _are_one_point(result, baseline):
        speed_up = result.performance.tokens_per_second / baseline.performance.tokens_per_second
        return Scaling(f"the baseline, another run: {devices}", "baseline", speed_up, speed_up)
    if differing := _differences(result, baseline):
        note = f"{' and '.join(differing)} not as in the baseline"
        # Tokens of the same model on the same devices compare whatever each of them costs, and that is all they do.
        speed_up = result.performance.tokens_per_second / baseline.performance.tokens_per_second
        return Scaling(note, speed_up=speed_up if set(differing) <= COSTS_OF_A_TOKEN else None)
    return _relation(result.trial.experiment, result.performance, baseline.trial.experiment, baseline.performance)


def _relation(experiment: Experiment, here: Performance, base_experiment: Experiment, base: Performance) -> Scaling:
    batch, base_batch = experiment.batch.global_batch_size, base_experiment.batch.global_batch_size
    speed_up = here.tokens_per_second / base.tokens_per_second
    efficiency = here.model_flops_per_second_per_device / base.model_flops_per_second_per_device
    ranks, base_ranks = experiment.parallel.world_size, base_experiment.parallel.world_size
    # Several ranks share a device on a CPU with fewer cores than ranks.
    sharing = f" ({ranks} ranks share them)" if ranks > here.num_devices else ""
    devices = count_of(base.num_devices, "device")
    kind: Kind = "weak"
    grown = f"{devices} to {here.num_devices}{sharing}"
    if here.num_devices == base.num_devices:
        # No devices were added, so there is a speed-up and nothing that could be called efficiency.
        return Scaling(f"layouts compared on {devices}; this is not scaling", "layout", None, speed_up)
    if batch == base_batch:
        kind, what = "strong", f"global batch of {batch}"
    elif batch * base.num_devices == base_batch * here.num_devices:
        what = f"batch of {batch / here.num_devices:g} per device"
    # Where ranks share devices, the batch of each rank may be constant where that of a device is not.
    elif batch * base_ranks == base_batch * ranks:
        what = f"batch of {batch / ranks:g} per rank"
    else:
        neither = f"neither the global batch ({base_batch} to {batch}) nor the batch per device"
        return Scaling(f"{neither} is held constant, {grown}")
    return Scaling(f"{what} held constant, {grown}", kind, efficiency, speed_up, what)


def _are_one_point(result: TrialReading, baseline: TrialReading) -> bool:
    here, base = result.experiment, baseline.experiment
    return here is not None and base is not None and here.fingerprint == base.fingerprint


def _differences(result: TrialReading, baseline: TrialReading) -> list[str]:
    here, base = result.trial.experiment, baseline.trial.experiment
    assert here is not None
    assert base is not None
    # The model's name is left out, because two files may describe the same model.
    unequal = {
        "model": here.model.model_dump(exclude={"name"}) != base.model.model_dump(exclude={"name"}),
        "precision": here.precision != base.precision,
        "recompute": here.parallel.recompute != base.parallel.recompute,
        # By name, as in fingerprints: what was measured stays so when a calibration corrects the cluster's file.
        "cluster": here.place != base.place,
        "device": _device(result) != _device(baseline),
    }
    return [name for name, differs in unequal.items() if differs]


def _device(result: TrialReading) -> str | None:
    environment = result.measurement.environment if result.measurement else None
    return environment.device if environment else None


@dataclass(frozen=True)
class StudyPoint:
    """One number of devices.

    Attributes:
        factor: devices over those of the baseline.
        efficiency: rate per device over the baseline's; the interval combines that of both.
        utilization: of the ideal, in which every device computes at its peak all the time (MFU).
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
    num_runs: int = 0

    @property
    def shares_devices(self) -> bool:
        """True if there are more ranks than devices, so that the ranks take turns."""
        return self.num_ranks > self.num_devices


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
    points = ranked_points(results)
    baseline = next((point for point in points if point.is_baseline), None)
    if record.spec.scaling is None or baseline is None:
        return None
    return _study(record.spec.scaling, [_measured_point(point, baseline) for point in points])


def predicted_study(
    record: SweepRecord, trials: Sequence[Trial], without: Collection[int] = frozenset()
) -> ScalingStudy | None:
    """The study on paper, of the plan or of the stand-in; None of another sweep, or without its baseline."""
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


def half_of_ratio(point: MeasuredPoint, baseline: MeasuredPoint) -> float:
    """Half the interval of the logarithm of the ratio of two rates, whose independent errors add by their squares."""
    return float(sum((log(each.seconds.high / each.seconds.low) / 2) ** 2 for each in (point, baseline)) ** 0.5)


def _measured_point(point: MeasuredPoint, baseline: MeasuredPoint) -> StudyPoint:
    here, base = point.performance, baseline.performance
    # The baseline is 1 by definition, so that its own noise widens the intervals of the others alone.
    half = 0.0 if point is baseline else half_of_ratio(point, baseline)
    experiment, factor = point.middle.planned, here.num_devices / base.num_devices
    with_a_device_each = _study_point(point.name, experiment, here, base, factor, half)
    return replace(with_a_device_each, num_devices=here.num_devices, num_runs=point.seconds.num_runs)


def _predicted_point(trial: Trial, baseline: Trial) -> StudyPoint:
    factor = trial.planned.parallel.world_size / baseline.planned.parallel.world_size
    return _study_point(trial.planned.label, trial.planned, trial.predicted, baseline.predicted, factor)


def _study_point(
    label: str,
    experiment: Experiment,
    here: Performance | Estimate,
    base: Performance | Estimate,
    factor: float,
    half: float = 0.0,
) -> StudyPoint:
    """A point with a device for each rank; `half` is half of the interval of the logarithm of its efficiency."""
    efficiency = here.model_flops_per_second_per_device / base.model_flops_per_second_per_device
    return StudyPoint(
        label=label,
        num_ranks=experiment.parallel.world_size,
        num_devices=experiment.parallel.world_size,
        factor=factor,
        global_batch_size=experiment.batch.global_batch_size,
        step_seconds=here.step_seconds,
        speed_up=here.tokens_per_second / base.tokens_per_second,
        efficiency=efficiency,
        efficiency_low=efficiency * exp(-half),
        efficiency_high=efficiency * exp(half),
        utilization=here.model_flops_utilization,
    )


@dataclass(frozen=True)
class LawFit:
    """A law with the share s that was fitted to points; negative if the speed-up was better than linear."""

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
