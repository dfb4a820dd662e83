"""The score of predictions against a measured table of configurations: their errors, their order, what fits.

A row's measured step is, in this order, what it states (`iter_time_s`), or follows from its rate: `tokens_per_s`, which
is the same whoever counts it, then `tflops_per_gpu`, then `mfu_pct` or `hfu_pct`. Rates of FLOPs become seconds through
those that the source counted.

What cannot be is more than the device can do or hold, or of something else than the row says. It comes of units, such
as milliseconds or shares in place of percent, and says nothing about a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from conf.errors import ConfigError
from conf.grouped import grouped
from conf.types.cluster_spec import narrow_dtype
from conf.units import GIBIBYTE, TERA
from costs.counts.flops import attention_core_forward_flops
from results.analysis.accuracy import spearman
from sweeps.table.cells import Row, choice_of, flag_of, number_of, text_of
from sweeps.table.prices import PricedRow, RowPrediction

STEP_COLUMNS = ("iter_time_s", "tokens_per_s", "tflops_per_gpu", "mfu_pct", "hfu_pct")
"""Columns that say how long a step took; the first one that is filled does."""

MOST_APART = 10
"""Times that a measured step may be of its prediction, or the other way round. No published step is three times or a
third of its own; beyond this, one of the two is of something else, such as milliseconds."""


@dataclass(frozen=True)
class RowComparison:
    """A priced row beside its measurements, which are None where the row does not hold them.

    Attributes:
        memory_bytes: as the row states it: of the fullest device, or of the row's stage.
        fits: it ran; False where memory ran out. None where memory is not predicted.
    """

    row: Row
    prediction: RowPrediction
    step_seconds: float | None
    memory_bytes: float | None
    fits: bool | None

    @property
    def predicted_memory_bytes(self) -> int:
        """The predicted memory that corresponds to the measured one, which may be what the allocator gave out alone."""
        return self.prediction.allocated_bytes if is_allocated(self.row) else self.prediction.memory_bytes

    @property
    def step_error(self) -> float | None:
        """Relative error of the predicted step: positive where it is too slow."""
        return None if self.step_seconds is None else self.prediction.estimate.step_seconds / self.step_seconds - 1

    @property
    def is_inside(self) -> bool:
        """True if the step lies in the interval of 80 % around its prediction."""
        interval = self.prediction.interval
        return self.step_seconds is not None and interval.low_seconds <= self.step_seconds <= interval.high_seconds

    @property
    def memory_error(self) -> float | None:
        return None if self.memory_bytes is None else self.predicted_memory_bytes / self.memory_bytes - 1

    @property
    def hardware_flops_per_second_per_device(self) -> float | None:
        """The measured rate, with FLOPs counted as this project does and not as the source does."""
        if self.step_seconds is None:
            return None
        estimate, setup = self.prediction.estimate, self.prediction.configuration.setup
        return estimate.hardware_flops / setup.parallel.world_size / self.step_seconds


@dataclass(frozen=True)
class Score:
    """Errors are means of absolute relative errors; None where no row holds what they need.

    Attributes:
        worst: the row whose step is furthest off.
        rank_correlation: Spearman's, of predicted and measured steps per second.
        constant_error: the step error of the one rate per device that suits these rows best.
        inside: share of the steps that lie in their interval of 80 %.
        fits_right: share of the rows of which it is right whether they fit.
    """

    num_steps: int
    step_error: float | None
    worst: RowComparison | None
    rank_correlation: float | None
    constant_error: float | None
    inside: float | None
    num_memories: int
    memory_error: float | None
    num_fits: int
    fits_right: float | None


def comparison(priced: PricedRow) -> RowComparison | None:
    """The row's prediction beside its measurements; None for a row that was not priced or holds none.

    Raises:
        ConfigError: a measurement is not a number or cannot be, with the column as its key.
    """
    if priced.prediction is None:
        return None
    row = priced.record.row
    seconds, memory = measured_step_seconds(row, priced.prediction), number_of(row, "memory_gib")
    ran_out = ran_out_of_memory(row)
    if not ran_out:  # such a row says how much it would have needed
        _require_possible_step(row, priced.prediction)
        capacity = priced.prediction.estimate.memory_capacity_bytes / GIBIBYTE
        if memory is not None and memory > math.ceil(capacity):  # in whole GiB as people round them
            problem = f"is more than the {capacity:.4g} GiB of the device"
            raise ConfigError("memory_gib", text_of(row, "memory_gib"), problem, _remedy("memory_gib"))
    if seconds is None and memory is None and not ran_out:
        return None
    models_memory = priced.prediction.configuration.models_memory
    memory_bytes = memory * GIBIBYTE if memory is not None and models_memory else None
    fits = not ran_out if models_memory else None
    return RowComparison(row, priced.prediction, None if ran_out else seconds, memory_bytes, fits)


def group_by_table(comparisons: Sequence[RowComparison]) -> dict[str, list[RowComparison]]:
    """The rows by the source and the table that they are from, where they say so."""

    def name_of(each: RowComparison) -> str:
        return ", ".join(filter(None, (text_of(each.row, column) for column in ("source", "table")))) or "rows"

    return grouped(comparisons, name_of)


def score(comparisons: Sequence[RowComparison]) -> Score:
    timed = [one for one in comparisons if one.step_seconds is not None]
    errors = [abs(one.step_error or 0.0) for one in timed]
    predicted_speeds = [-one.prediction.estimate.step_seconds for one in timed]
    memory_errors = [abs(one.memory_error) for one in comparisons if one.memory_error is not None]
    right = [one.prediction.fits == one.fits for one in comparisons if one.fits is not None]
    return Score(
        num_steps=len(timed),
        step_error=_mean(errors),
        worst=max(timed, key=lambda one: abs(one.step_error or 0.0), default=None),
        rank_correlation=spearman(predicted_speeds, [-(one.step_seconds or 0.0) for one in timed]),
        constant_error=constant_error([one.hardware_flops_per_second_per_device or 0.0 for one in timed]),
        inside=_mean([float(one.is_inside) for one in timed]),
        num_memories=len(memory_errors),
        memory_error=_mean(memory_errors),
        num_fits=len(right),
        fits_right=_mean([float(one) for one in right]),
    )


def constant_error(rates: Sequence[float]) -> float | None:
    """Mean step error if every row ran at the one rate that makes it least.

    A row of rate r that is priced at rate c comes out r/c of its time. The sum of |r/c - 1| is convex and piecewise
    linear in 1/c, so that its least value lies at one of the rates.
    """
    return min((sum(abs(rate / constant - 1) for rate in rates) / len(rates) for constant in rates), default=None)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


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
            counted = prediction.estimate.model_flops if kind == "model" else prediction.estimate.hardware_flops
            masked = _masked_flops(prediction) if counts_half_of_attention(row, prediction) else 0
            return (counted - masked) / setup.parallel.world_size / rate
    return None


def counts_model_flops(row: Row, peak_flops_per_second: float) -> bool:
    """True if the row's `tflops_per_gpu` leave recomputation out.

    Most published rates count it (docs/metrics.md). These do not where `tflops_count` is `model`, or, where it is
    empty, if they are the MFU's rate rather than the HFU's.
    """
    if text_of(row, "tflops_count"):
        return choice_of(row, "tflops_count", {"model": True, "hardware": False}, default=None)
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
    trainer = prediction.configuration.implementation
    return flag_of(row, "causal_half", default=trainer.name == "megatron-core" and trainer.flash_attention)


def is_allocated(row: Row) -> bool:
    """True if the row's memory is what the allocator gave out, without what the framework reserves beside it."""
    return flag_of(row, "allocated_memory", default=False)


def ran_out_of_memory(row: Row) -> bool:
    return flag_of(row, "out_of_memory", default=False)


def _measured_flops(row: Row, kind: str, prediction: RowPrediction) -> float | None:
    """FLOP/s per device of that kind, as the row states them; None where it states none of that kind."""
    # A stated rate comes before a percentage, which also depends on the peak that the source took.
    stated, percent = number_of(row, "tflops_per_gpu"), number_of(row, "mfu_pct" if kind == "model" else "hfu_pct")
    peak = prediction.estimate.peak_flops_per_second
    if stated is not None:
        return stated * TERA if counts_model_flops(row, peak) == (kind == "model") else None
    return None if percent is None else percent / 100 * peak


def _masked_flops(prediction: RowPrediction) -> float:
    setup = prediction.configuration.setup
    # Forward and backward together are three times the forward pass, of which half is left out.
    core = attention_core_forward_flops(setup.model, setup.batch.global_batch_size)
    return 1.5 * setup.model.num_layers * core


def _require_possible_step(row: Row, prediction: RowPrediction) -> None:
    device = prediction.configuration.setup.cluster.device
    seconds = measured_step_seconds(row, prediction)
    if seconds is None:
        return
    column = next(name for name in STEP_COLUMNS if text_of(row, name))
    precision = prediction.configuration.setup.precision
    recipe = precision.matmul_recipe  # the narrowest type that the row multiplies in
    peak = device.peak_flops_per_second[precision.dtype if recipe is None else narrow_dtype(recipe)]
    # What a core of a CPU can do is measured anew in each job, and no data sheet says it.
    if device.kind == "gpu" and _rate(row, column, prediction, seconds) > peak:
        problem = f"is a rate above the {peak / TERA:.0f} TFLOP/s that {device.name} has at its peak"
        raise ConfigError(column, text_of(row, column), problem, _remedy(column))
    predicted = prediction.estimate.step_seconds
    if not 1 / MOST_APART <= seconds / predicted <= MOST_APART:
        problem = f"is a step of {seconds:.3g} s, where {predicted:.3g} s are predicted"
        raise ConfigError(column, text_of(row, column), problem, _remedy(column))


def _rate(row: Row, column: str, prediction: RowPrediction, seconds: float) -> float:
    """FLOP/s of one device: as the row states it, else of the fewest FLOPs with which such a step can be done."""
    stated = number_of(row, column) or 0.0
    if column == "tflops_per_gpu":
        return stated * TERA
    if column in ("mfu_pct", "hfu_pct"):
        return stated / 100 * prediction.estimate.peak_flops_per_second
    # Of the model, nobody can do without these, with the half of the scores that a mask leaves.
    fewest = prediction.estimate.model_flops - _masked_flops(prediction)
    return fewest / prediction.configuration.setup.parallel.world_size / seconds


def _remedy(column: str) -> str:
    units = {
        "iter_time_s": "Give seconds of one step",
        "tokens_per_s": "Give tokens per second of all devices",
        "tflops_per_gpu": "Give TFLOP/s of one device",
        "memory_gib": "Give GiB of one device",
    }
    return f"{units.get(column, 'Give percent of the peak, such as 44')}, or leave the cell empty."
