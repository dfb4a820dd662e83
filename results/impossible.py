"""Measurements that cannot be: more than the device can do or hold, or of something else than the row says.

They come of units, such as milliseconds or shares in place of percent, and say nothing about a prediction.
"""

from __future__ import annotations

import math

from conf.errors import ConfigError
from conf.types.cluster_spec import narrow_dtype
from conf.units import GIBIBYTE, TERA
from results.measured import STEP_COLUMNS, fewest_flops, measured_step_seconds
from sweeps.table.cells import Row, number_of, text_of
from sweeps.table.prices import RowPrediction

MOST_APART = 10
"""Times that a measured step may be of its prediction, or the other way round. No published step is three times or a
third of its own; beyond this, one of the two is of something else, such as milliseconds."""


def require_possible(row: Row, prediction: RowPrediction) -> None:
    """Refuse a step, a rate or a memory that the row cannot have had.

    Raises:
        ConfigError: it is so, or a measurement is not a number; with the column as its key.
    """
    _require_possible_step(row, prediction)
    _require_possible_memory(row, prediction)


def _require_possible_step(row: Row, prediction: RowPrediction) -> None:
    device = prediction.configuration.setup.cluster.device
    seconds = measured_step_seconds(row, prediction)
    if seconds is None:
        return
    column = next(name for name in STEP_COLUMNS if text_of(row, name))
    peak = _peak(prediction)
    # What a core of a CPU can do is measured anew in each job, and no data sheet says it.
    if device.kind == "gpu" and _rate(row, column, prediction, seconds) > peak:
        problem = f"is a rate above the {peak / TERA:.0f} TFLOP/s that {device.name} has at its peak"
        raise ConfigError(column, text_of(row, column), problem, _remedy(column))
    predicted = prediction.estimate.step_seconds
    if not 1 / MOST_APART <= seconds / predicted <= MOST_APART:
        problem = f"is a step of {seconds:.3g} s, where {predicted:.3g} s are predicted"
        raise ConfigError(column, text_of(row, column), problem, _remedy(column))


def _require_possible_memory(row: Row, prediction: RowPrediction) -> None:
    """Refuse more memory than the device has, in whole GiB as people round them."""
    gibibytes, capacity = number_of(row, "memory_gib"), prediction.estimate.memory_capacity_bytes / GIBIBYTE
    if gibibytes is not None and gibibytes > math.ceil(capacity):
        problem = f"is more than the {capacity:.4g} GiB of the device"
        raise ConfigError("memory_gib", text_of(row, "memory_gib"), problem, _remedy("memory_gib"))


def _peak(prediction: RowPrediction) -> float:
    """FLOP/s of one device in the narrowest type that the row multiplies in."""
    setup = prediction.configuration.setup
    recipe, peaks = setup.precision.matmul_recipe, setup.cluster.device.peak_flops_per_second
    return peaks[setup.precision.dtype if recipe is None else narrow_dtype(recipe)]


def _rate(row: Row, column: str, prediction: RowPrediction, seconds: float) -> float:
    """FLOP/s of one device: as the row states it, else of the fewest FLOPs with which such a step can be done."""
    stated = number_of(row, column) or 0.0
    if column == "tflops_per_gpu":
        return stated * TERA
    if column in ("mfu_pct", "hfu_pct"):
        return stated / 100 * prediction.estimate.peak_flops_per_second
    return fewest_flops(prediction) / prediction.configuration.setup.parallel.world_size / seconds


def _remedy(column: str) -> str:
    units = {
        "iter_time_s": "Give seconds of one step",
        "tokens_per_s": "Give tokens per second of all devices",
        "tflops_per_gpu": "Give TFLOP/s of one device",
        "memory_gib": "Give GiB of one device",
    }
    return f"{units.get(column, 'Give percent of the peak, such as 44')}, or leave the cell empty."
