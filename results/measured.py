"""The measurement in a row of a table: the time of its step, which memory its memory column means, and what cannot be.

A row's measured step is, in this order, what it states (`iter_time_s`), or follows from its rate: `tokens_per_s`, which
is the same whoever counts it, then `tflops_per_gpu`, then `mfu_pct` or `hfu_pct`. Rates of FLOPs become seconds through
those that the source counted.

What cannot be is more than the device can do or hold, or of something else than the row says. It comes of units, such
as milliseconds or shares in place of percent, and says nothing about a prediction.
"""

from __future__ import annotations

import math
import re

from conf.errors import ConfigError
from conf.types.cluster_spec import narrow_dtype
from conf.units import GIBIBYTE, TERA
from sweeps.table.cells import Row, flag_of, match_in, number_of, text_of
from sweeps.table.prices import RowPrediction
from sweeps.table.remarks import with_columns
from train_core.costs.counts.flops import attention_core_forward_flops

STEP_COLUMNS = ("iter_time_s", "tokens_per_s", "tflops_per_gpu", "mfu_pct", "hfu_pct")
"""Columns that say how long a step took; the first one that is filled does."""

MOST_APART = 10
"""Times that a measured step may be of its prediction, or the other way round. No published step is three times or a
third of its own; beyond this, one of the two is of something else, such as milliseconds."""


def measured_step_seconds(row: Row, prediction: RowPrediction) -> float | None:
    """Seconds of one optimizer step as the row measured it; None where it holds no time and no rate."""
    seconds, tokens_per_second = number_of(row, "iter_time_s"), number_of(row, "tokens_per_s")
    if seconds is not None:
        return seconds
    setup = prediction.configuration.setup
    if tokens_per_second is not None:
        return setup.batch.global_batch_size * setup.model.seq_length / tokens_per_second
    for kind in ("model", "hardware"):
        rate = _measured_flops(row, kind, prediction)
        if rate is not None:
            return _counted_flops(row, kind, prediction) / setup.parallel.world_size / rate
    return None


def fewest_flops(prediction: RowPrediction) -> float:
    """FLOPs of a step that nobody can do without: of the model, with the half of the scores that a mask leaves."""
    return prediction.estimate.model_flops - _masked_flops(prediction)


def counts_model_flops(row: Row, peak_flops_per_second: float) -> bool:
    """True if the row's `tflops_per_gpu` leave recomputation out.

    Most published rates count it (docs/metrics.md). These do not where the notes say `model FLOPs` or `model TFLOPs`,
    or, where the notes say neither, if they are the MFU's rate rather than the HFU's.
    """
    stated = re.search(r"\b(hardware|model) t?flop", text_of(row, "notes").lower())
    if stated:
        return stated.group(1) == "model"
    model_percent, hardware_percent = number_of(row, "mfu_pct"), number_of(row, "hfu_pct")
    if model_percent is None or hardware_percent is None:
        return model_percent is not None
    percent = 100 * TERA * (number_of(row, "tflops_per_gpu") or 0.0) / peak_flops_per_second
    return abs(percent - model_percent) < abs(percent - hardware_percent)


def counts_half_of_attention(row: Row, prediction: RowPrediction) -> bool:
    """True if the row's rates count only the half of attention's scores that a causal mask leaves.

    Megatron-Core has done so since 2025: rows of Megatron-Bridge and of JUPITER that print a rate beside a time agree
    with it within 1 %, and with the full square they do not by 6 %.
    """
    if match_in(row, r"non-causal|full square", ("notes",)):
        return False
    if match_in(row, r"causal[^;]*(?:count|once|half|halv)|count[^;]*causal", ("notes",)):
        return True
    trainer = prediction.configuration.implementation
    return trainer.name == "megatron-core" and trainer.flash_attention


def is_allocated(row: Row) -> bool:
    """True if the row's memory is what the allocator gave out, without what the framework reserves beside it."""
    return match_in(row, r"max[ _]allocated|allocated peak|peak allocated|max_memory_allocated", ("notes",)) is not None


def ran_out_of_memory(row: Row) -> bool:
    """True if the row says so, in its column or in its remarks."""
    return flag_of(with_columns(row), "out_of_memory", default=False)


def _measured_flops(row: Row, kind: str, prediction: RowPrediction) -> float | None:
    """FLOP/s per device of that kind, as the row states them; None where it states none of that kind."""
    # A stated rate comes before a percentage, which also depends on the peak that the source took.
    stated, percent = number_of(row, "tflops_per_gpu"), number_of(row, "mfu_pct" if kind == "model" else "hfu_pct")
    peak = prediction.estimate.peak_flops_per_second
    if stated is not None:
        return stated * TERA if counts_model_flops(row, peak) == (kind == "model") else None
    return None if percent is None else percent / 100 * peak


def _counted_flops(row: Row, kind: str, prediction: RowPrediction) -> float:
    """FLOPs of a step as the row's source counts them."""
    estimate = prediction.estimate
    counted = estimate.model_flops if kind == "model" else estimate.hardware_flops
    if not counts_half_of_attention(row, prediction):
        return counted
    return counted - _masked_flops(prediction)


def _masked_flops(prediction: RowPrediction) -> float:
    """FLOPs of a step on scores that a causal mask hides."""
    setup = prediction.configuration.setup
    # Forward and backward together are three times the forward pass, of which half is left out.
    core = attention_core_forward_flops(setup.model, setup.batch.global_batch_size)
    return 1.5 * setup.model.num_layers * core


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
