"""The measurement in a row of a table: the time of its step, and which memory its memory column means.

A row's measured step is, in this order, what it states (`iter_time_s`), or follows from its rate: `tokens_per_s`, which
is the same whoever counts it, then `tflops_per_gpu`, then `mfu_pct` or `hfu_pct`. Rates of FLOPs become seconds through
those that the source counted.
"""

from __future__ import annotations

import re

from conf.units import TERA
from sweeps.table.cells import Row, flag_of, match_in, number_of, text_of
from sweeps.table.prices import RowPrediction
from sweeps.table.remarks import with_columns
from train_core.costs.counts.flops import attention_core_forward_flops

STEP_COLUMNS = ("iter_time_s", "tokens_per_s", "tflops_per_gpu", "mfu_pct", "hfu_pct")
"""Columns that say how long a step took; the first one that is filled does."""


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
