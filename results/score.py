"""How far predictions are from what a table of configurations measured: its errors, its order, what fits.

A row's measured step is, in this order, what it states (`iter_time_s`), or follows from its rate: `tflops_per_gpu`,
`mfu_pct` or `hfu_pct`, `tokens_per_s`. Rates become seconds through the FLOPs of docs/metrics.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from conf.units import GIBIBYTE, TERA
from sweeps.table.cells import Row, number_of, text_of
from sweeps.table.prices import PricedRow, RowPrediction

FEWEST_FOR_RANKS = 3
"""The ranks of two rows agree or disagree entirely, which says nothing."""


@dataclass(frozen=True)
class Comparison:
    """A priced row beside its measurements, which are None where the row does not hold them.

    Attributes:
        memory_bytes: as the row states it: of the fullest device, or of the row's stage.
        fits: it ran; False where the notes say that memory ran out. None where memory is not predicted.
    """

    row: Row
    prediction: RowPrediction
    step_seconds: float | None
    memory_bytes: float | None
    fits: bool | None

    @property
    def predicted_memory_bytes(self) -> int:
        """The predicted memory that corresponds to the measured one.

        Where the row says `max allocated`, it leaves out what the framework reserves beyond its tensors.
        """
        return self.prediction.allocated_bytes if _says(self.row, "max allocated") else self.prediction.memory_bytes

    @property
    def step_error(self) -> float | None:
        """Relative error of the predicted step: positive where it is too slow."""
        return None if self.step_seconds is None else self.prediction.estimate.step_seconds / self.step_seconds - 1

    @property
    def memory_error(self) -> float | None:
        return None if self.memory_bytes is None else self.predicted_memory_bytes / self.memory_bytes - 1

    @property
    def hardware_flops_per_second_per_device(self) -> float | None:
        """The measured rate, with FLOPs counted as this project does and not as the source does."""
        return None if self.step_seconds is None else _flops_per_device(self.prediction) / self.step_seconds


@dataclass(frozen=True)
class Score:
    """Errors are means of absolute relative errors; None where no row holds what they need.

    Attributes:
        worst: the row whose step is furthest off.
        rank_correlation: Spearman's, of predicted and measured steps per second.
        constant_error: the step error of the one rate per device that suits these rows best.
        fits_right: share of the rows of which it is right whether they fit.
    """

    num_steps: int
    step_error: float | None
    worst: Comparison | None
    rank_correlation: float | None
    constant_error: float | None
    num_memories: int
    memory_error: float | None
    num_fits: int
    fits_right: float | None


def comparison(priced: PricedRow) -> Comparison | None:
    """The row's prediction beside its measurements; None for a row that was not priced or holds none.

    Raises:
        ConfigError: a measurement is not a number, with the column as its key.
    """
    if priced.prediction is None:
        return None
    row = priced.record.row
    seconds, memory = measured_step_seconds(row, priced.prediction), number_of(row, "memory_gib")
    ran_out = _says(row, "out of memory")
    if seconds is None and memory is None and not ran_out:
        return None
    models_memory = priced.prediction.configuration.models_memory
    memory_bytes = memory * GIBIBYTE if memory is not None and models_memory else None
    fits = not ran_out if models_memory else None
    return Comparison(row, priced.prediction, None if ran_out else seconds, memory_bytes, fits)


def grouped_by_table(comparisons: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """The rows by the source and the table that they are from, where they say so."""
    groups: dict[str, list[Comparison]] = {}
    for each in comparisons:
        parts = [text_of(each.row, column) for column in ("source", "table")]
        groups.setdefault(", ".join(filter(None, parts)) or "rows", []).append(each)
    return groups


def measured_step_seconds(row: Row, prediction: RowPrediction) -> float | None:
    """Seconds of one optimizer step as the row measured it; None where it holds no time and no rate."""
    seconds, rate = number_of(row, "iter_time_s"), number_of(row, "tokens_per_s")
    if seconds is not None:
        return seconds
    model_flops = _measured_flops(row, "model", prediction)
    hardware_flops = _measured_flops(row, "hardware", prediction)
    if model_flops is not None:
        return prediction.estimate.model_flops / _num_devices(prediction) / model_flops
    if hardware_flops is not None:
        return _flops_per_device(prediction) / hardware_flops
    setup = prediction.configuration.setup
    tokens = setup.batch.global_batch_size * setup.model.seq_length
    return None if rate is None else tokens / rate


def counts_model_flops(row: Row, peak_flops_per_second: float) -> bool:
    """Whether the row's `tflops_per_gpu` leave recomputation out.

    Most published rates count it (docs/metrics.md). These do not where the notes say `model FLOPs` or `model TFLOPs`,
    or, where the notes say neither, if they are the MFU's rate rather than the HFU's.
    """
    said = re.search(r"\b(hardware|model) t?flop", text_of(row, "notes").lower())
    if said:
        return said.group(1) == "model"
    model_percent, hardware_percent = number_of(row, "mfu_pct"), number_of(row, "hfu_pct")
    if model_percent is None or hardware_percent is None:
        return model_percent is not None
    percent = 100 * TERA * (number_of(row, "tflops_per_gpu") or 0.0) / peak_flops_per_second
    return abs(percent - model_percent) < abs(percent - hardware_percent)


def score(comparisons: Sequence[Comparison]) -> Score:
    timed = [one for one in comparisons if one.step_seconds is not None]
    errors = [abs(one.step_error or 0.0) for one in timed]
    memory_errors = [abs(one.memory_error) for one in comparisons if one.memory_error is not None]
    right = [one.prediction.fits == one.fits for one in comparisons if one.fits is not None]
    return Score(
        num_steps=len(timed),
        step_error=_mean(errors),
        worst=max(timed, key=lambda one: abs(one.step_error or 0.0), default=None),
        rank_correlation=_step_rank_correlation(timed),
        constant_error=constant_error([one.hardware_flops_per_second_per_device or 0.0 for one in timed]),
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


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's correlation, which is Pearson's of the ranks.

    None for fewer than three rows, and where all values of one side are equal.
    """
    if len(left) < FEWEST_FOR_RANKS:
        return None
    x, y = _ranks(left), _ranks(right)
    middle = (len(x) + 1) / 2
    spread = sum((a - middle) ** 2 for a in x) * sum((b - middle) ** 2 for b in y)
    together = sum((a - middle) * (b - middle) for a, b in zip(x, y, strict=True))
    return None if spread == 0 else together / spread**0.5


def _step_rank_correlation(timed: Sequence[Comparison]) -> float | None:
    predicted = [-one.prediction.estimate.step_seconds for one in timed]
    return rank_correlation(predicted, [-(one.step_seconds or 0.0) for one in timed])


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, from 1 upwards. Equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]


def _measured_flops(row: Row, kind: str, prediction: RowPrediction) -> float | None:
    """FLOP/s per device of that kind, as the row states them; None where it states none of that kind."""
    # A stated rate comes before a percentage, which also depends on the peak that the source took.
    stated, percent = number_of(row, "tflops_per_gpu"), number_of(row, "mfu_pct" if kind == "model" else "hfu_pct")
    peak = prediction.estimate.peak_flops_per_second
    if stated is not None:
        return stated * TERA if counts_model_flops(row, peak) == (kind == "model") else None
    return None if percent is None else percent / 100 * peak


def _flops_per_device(prediction: RowPrediction) -> float:
    return prediction.estimate.hardware_flops / _num_devices(prediction)


def _num_devices(prediction: RowPrediction) -> int:
    return prediction.configuration.setup.parallel.world_size


def _says(row: Row, words: str) -> bool:
    return words in text_of(row, "notes").lower()


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
