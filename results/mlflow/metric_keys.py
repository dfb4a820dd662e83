"""The metrics of a run: a small set of keys that stays as it is, in units that people read.

The part before the slash says what a number is: predicted (`pred`), measured (`meas`), both compared (`error`), held
against the baseline (`scale`), what the sweep seeks where that is no rate (`objective`), of one step (`step`), what was
used meanwhile (`system`), or the sweep's best (`best`); before a later stage's figure it is the name of the stage. The
rest is short, because MLflow's columns are narrow.
docs/how-to/mlflow.md explains every key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from conf.folders import package_content
from conf.types.sweep_spec import Objective, figure_name
from conf.units import GIBIBYTE
from costs import Estimate
from results.analysis.scaling import Scaling
from sweeps.points.objectives import measured_value
from sweeps.reading import TrialReading
from train_core.trial.measurement import Performance, StepMetrics

PERCENT = 100
NOT_FOR_MLFLOW = re.compile(r"[^\w. /-]", re.ASCII)


class Quantity(NamedTuple):
    """A field of a value of ours, and what MLflow calls it, multiplied by `times` and divided by `over`."""

    name: str
    field: str
    times: int = 1
    over: float = 1.0

    def of(self, holder: object) -> float | None:
        """Return the metric's value; None if there is no number, as in what an earlier version wrote."""
        value: float | None = getattr(holder, self.field, None)
        return None if value is None else value * self.times / self.over


QUANTITIES = {
    table: tuple(
        Quantity(name, **(entry if isinstance(entry, dict) else {"field": entry})) for name, entry in entries.items()
    )
    for table, entries in package_content("metric_keys.yaml", "results.mlflow").items()
}
RATES = QUANTITIES["rates"]

SOUGHT = "objective/"
RANK_MEMORY = "meas/rank_mem_GiB"
"""Over the rank, where other metrics have the step. The page for `system/` would show it over time."""


def step_metrics(metrics: StepMetrics, *, is_own: bool = True) -> dict[str, float]:
    """The figures of a step. Of a number that another program does not tell there is none; a loss may be no number.

    Args:
        is_own: those of this package's own trainer have names that say what they are of.
    """
    if metrics.figures and not is_own:
        return _printed("step", metrics.figures)
    of_step = _metrics_of("step", QUANTITIES["step"], metrics)
    told = {key: value for key, value in of_step.items() if key == "step/loss" or not math.isnan(value)}
    return (
        told | metrics.figures | (_metrics_of("system", QUANTITIES["system"], metrics.system) if metrics.system else {})
    )


def predicted_metrics(estimate: Estimate) -> dict[str, float]:
    """Return the cost model's figures for a step, and where its seconds go."""
    memory = {
        "pred/mem_GiB": estimate.peak_memory_bytes / GIBIBYTE,
        "pred/free_GiB": (estimate.memory_capacity_bytes - estimate.peak_memory_bytes) / GIBIBYTE,
    }
    return (
        _metrics_of("pred", RATES, estimate)
        | memory
        | _metrics_of("pred", QUANTITIES["predicted_terms"], estimate.step_terms)
    )


def measured_metrics(performance: Performance) -> dict[str, float]:
    """The measured figures; memory is the fullest rank's, and the terms of a step are the slowest rank's."""
    values = _metrics_of("meas", (*RATES, *QUANTITIES["measured"]), performance)
    if performance.model_flops_utilization > 1.0:
        del values["meas/MFU_pct"]  # something else ran while the peak was measured
    if performance.peak_memory_bytes:
        values["meas/mem_GiB"] = max(performance.peak_memory_bytes) / GIBIBYTE
    if performance.breakdown is not None:
        values |= _metrics_of("meas", QUANTITIES["measured_terms"], performance.breakdown.slowest)
    return values


def objective_metrics(objectives: Sequence[Objective], reading: TrialReading) -> dict[str, float]:
    """The objectives of the sweep as the trial measured them, without the rate, which is `meas/TFLOPS`."""
    values = {objective_key(objective): measured_value(objective, reading) for objective in objectives}
    return {key: value for key, value in values.items() if key.startswith(SOUGHT) and value is not None}


def figure_metrics(reading: TrialReading) -> dict[str, float]:
    """The figures that the program of a trial, or of a later stage, printed or left under names of its own."""
    is_own = not reading.trial.stage and (reading.experiment is None or reading.experiment.trainer.is_own)
    return {} if is_own else _printed(reading.trial.stage or "meas", reading.metrics)  # its steps have them


def _printed(prefix: str, figures: Mapping[str, float]) -> dict[str, float]:
    """Figures by their names, which may hold signs that MLflow does not take."""
    return {f"{prefix}/{NOT_FOR_MLFLOW.sub('_', name)}": value for name, value in figures.items()}


def objective_key(objective: Objective) -> str:
    if objective == "throughput":
        return "meas/TFLOPS"
    return SOUGHT + NOT_FOR_MLFLOW.sub("_", figure_name(objective) or objective)


def scaling_metrics(relation: Scaling) -> dict[str, float]:
    """Scaling efficiency by its kind. The baseline's own is 100 % of either kind, so that curves begin there."""
    kinds = ("weak", "strong") if relation.kind == "baseline" else (relation.kind,)
    efficiency = relation.efficiency
    values = {} if efficiency is None else {f"scale/{kind}_pct": PERCENT * efficiency for kind in kinds}
    return values if relation.speed_up is None else values | {"scale/speedup": relation.speed_up}


def _metrics_of(prefix: str, quantities: tuple[Quantity, ...], holder: object) -> dict[str, float]:
    """The quantities of which the holder has a number."""
    values = {f"{prefix}/{quantity.name}": quantity.of(holder) for quantity in quantities}
    return {key: value for key, value in values.items() if value is not None}
