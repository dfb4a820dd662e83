"""The order of points that are only predicted, and the cells of a prediction, which are the same in every table."""

from __future__ import annotations

from collections.abc import Sequence

from results.table import Cell, number
from results.units import count, gib, percent, seconds, tflops
from sweeps.trial import Trial


def by_prediction(trials: Sequence[Trial]) -> list[Trial]:
    """Trials in the order of their predictions.

    First those that fit, fastest first; then those that do not, by what they lack; then those that cannot exist.
    """
    return sorted(trials, key=_prediction_order)


def _prediction_order(trial: Trial) -> tuple[int, float]:
    if trial.estimate is None:
        return (2, 0.0)
    if trial.infeasible_reason is not None:
        return (1, float(trial.estimate.shortfall_bytes))
    return (0, -trial.estimate.model_flops_per_second_per_device)


def predicted_cells(trial: Trial) -> dict[str, Cell]:
    """The predicted figures of a point by their names, without any where it cannot exist."""
    estimate, size = trial.estimate, trial.experiment.parallel.world_size if trial.experiment else None
    rate = estimate.model_flops_per_second_per_device if estimate else None
    utilization = estimate.model_flops_utilization if estimate else None
    step, memory = (estimate.step_seconds, estimate.peak_memory_bytes) if estimate else (None, None)
    return {
        "devices": number(count(size), size),
        "model TFLOPS": number(tflops(rate), rate),
        "MFU %": number(percent(utilization), utilization),
        "step s": number(seconds(step), step),
        "peak GiB": number(gib(memory), memory),
    }
