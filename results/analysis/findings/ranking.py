"""The figures of a point as cells for report and terminal, and the plan that answers the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp

from results.analysis.findings.objective import interval_text, value_text
from results.analysis.scaling import Scaling, half_of_ratio, scaling
from results.render.section import ReportSubject
from results.render.table import Cell, number, text
from results.render.units import ABSENT, count, gib, percent, seconds, share_of_peak, significant, tflops
from sweeps.ranking.points import MeasuredPoint, ranking_of
from sweeps.reading import TrialReading
from sweeps.trial import SweepRecord, Trial

PREDICTED: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "model TFLOPS": ("model_flops_per_second_per_device", tflops),
    "MFU %": ("model_flops_utilization", percent),
    "step s": ("step_seconds", seconds),
    "peak GiB": ("peak_memory_bytes", gib),
}
MOST_SHOWN = 10.0
"""A half interval of a larger share says only that nothing is known, in however many digits."""


def relations_of_points(points: Sequence[MeasuredPoint], readings: Sequence[TrialReading]) -> dict[str, Scaling]:
    """The scaling of what is shown of each point against what is shown of the baseline, by its middle run's id."""
    measured = next((point for point in points if point.is_baseline), None)
    declared = next((reading for reading in readings if reading.trial.is_baseline), None)
    baseline = measured.middle if measured else declared
    return {each.middle.trial.trial_id: _with_bounds(scaling(each.middle, baseline), each, measured) for each in points}


def _with_bounds(relation: Scaling, point: MeasuredPoint, baseline: MeasuredPoint | None) -> Scaling:
    if relation.efficiency is None or baseline is None or relation.kind == "baseline":
        return relation
    factor = exp(half_of_ratio(point, baseline))
    return replace(relation, efficiency_bounds=(relation.efficiency / factor, relation.efficiency * factor))


def efficiency_text(relation: Scaling) -> str:
    """The ends of its interval in percent: a share by itself would say more than is known."""
    if relation.efficiency_bounds is None:
        return percent(relation.efficiency)
    return " to ".join(map(percent, relation.efficiency_bounds))


def measured_cells(point: MeasuredPoint, relation: Scaling) -> dict[str, Cell]:
    """The figures of a point by their names; the half interval is a share of the seconds that stand beside it."""
    performance = point.performance
    memory = max(performance.peak_memory_bytes, default=None)
    half = (point.seconds.high - point.seconds.low) / 2 / performance.step_seconds
    hardware = performance.hardware_flops_per_second_per_device
    cells = {
        "devices": number(count(performance.num_devices), performance.num_devices),
        "model TFLOPS": number(tflops(point.values[0]), point.values[0]),
        "± %": number(f"{100 * half:.0f}" if half <= MOST_SHOWN else f">{100 * MOST_SHOWN:.0f}", half),
        "runs": number(str(len(point.runs)), len(point.runs)),
        "MFU %": number(share_of_peak(performance.model_flops_utilization), performance.model_flops_utilization),
        "step s": number(seconds(performance.step_seconds), performance.step_seconds),
        "tokens/s": number(count(performance.tokens_per_second), performance.tokens_per_second),
        "x baseline": number(significant(relation.speed_up), relation.speed_up),
        "scaling": text(relation.kind if relation.held_constant else ABSENT),
        "efficiency %": number(efficiency_text(relation), relation.efficiency),
        "hardware TFLOPS": number(tflops(hardware), hardware),
        "peak GiB": number(gib(memory), memory),
    }
    of_time = cells.keys() - {"devices", "runs", "scaling", "peak GiB"} if not performance.is_timed else ()
    return cells | dict.fromkeys(of_time, text(ABSENT))


def sought_cells(point: MeasuredPoint) -> list[Cell]:
    """The value of each objective, the interval of the first, the number of runs, and the seconds of a step."""
    both = zip(point.objectives, point.values, strict=True)
    performance, runs = point.middle.performance, len(point.runs)
    step = performance.step_seconds if performance and performance.is_timed else None
    return [
        *(number(value_text(objective, value), value) for objective, value in both),
        text(interval_text(point.objectives[0], point.interval)),
        number(str(runs), runs),
        number(seconds(step), step),
    ]


def by_prediction(trials: Sequence[Trial]) -> list[Trial]:
    """Trials by their predictions: what fits, fastest first; what does not, by what it lacks; what cannot exist."""
    return sorted(trials, key=_prediction_order)


def _prediction_order(trial: Trial) -> tuple[int, float]:
    if trial.estimate is None:
        return (2, 0.0)
    if trial.infeasible_reason is not None:
        return (1, float(trial.estimate.shortfall_bytes))
    return (0, -trial.estimate.model_flops_per_second_per_device)


def predicted_cells(trial: Trial) -> dict[str, Cell]:
    """The predicted figures of a point by their names, without any where it cannot exist."""
    size = trial.experiment.parallel.world_size if trial.experiment else None
    cells = {"devices": number(count(size), size)}
    for head, (name, shown) in PREDICTED.items():
        value = None if trial.estimate is None else getattr(trial.estimate, name)
        cells[head] = number(shown(value), value)
    return cells


@dataclass(frozen=True)
class BestPlan:
    """The plan that the answer is about.

    Attributes:
        reading: how it was measured; None where it is known on paper alone.
    """

    trial: Trial
    reading: TrialReading | None
    label: str

    @property
    def why(self) -> str:
        """The way in which it was chosen, to stand behind its name."""
        return "of the highest measured rate per device" if self.reading else "predicted to be the fastest per device"


def best_plan(subject: ReportSubject) -> BestPlan | None:
    """Return the best plan; None if no full-size point fits. A proxy's measurement ranks no full-size plan."""
    record = subject.sweep.record
    if record.mode == "cluster":
        for reading in ranking_of(subject.results):
            return BestPlan(reading.trial, reading, reading.label)
    trial = best_on_paper(record)
    return BestPlan(trial, None, record.plan_label_of(trial)) if trial else None


def best_on_paper(record: SweepRecord) -> Trial | None:
    """The best of the points that fit on as many devices as the baseline, or of all, where none of them does.

    Fewer devices are easily faster per device, and are no answer to how to use that many.
    """
    fitting = [trial for trial in by_prediction(record.plan) if trial.infeasible_reason is None and trial.estimate]
    baseline = next((trial for trial in record.plan if trial.is_baseline and trial.experiment), None)
    alike = [trial for trial in fitting if baseline and num_devices(trial) == num_devices(baseline)]
    return next(iter(alike or fitting), None)


def num_devices(trial: Trial) -> int:
    """Return the number of devices that the trial asks for; 0 of one that cannot exist."""
    return trial.experiment.parallel.world_size if trial.experiment else 0


def nearest_plan(subject: ReportSubject) -> BestPlan | None:
    """The plan that lacks least memory, to be shown where none fits."""
    lacking = [trial for trial in subject.sweep.record.plan if trial.estimate]
    if not lacking:
        return None
    least = min(lacking, key=lambda trial: trial.estimate.shortfall_bytes if trial.estimate else 0)
    return BestPlan(least, None, subject.sweep.record.plan_label_of(least))
