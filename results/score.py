"""The score of predictions against a measured table of configurations: their errors, their order, what fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conf.grouped import grouped
from conf.units import GIBIBYTE
from results.accuracy import spearman
from results.measured import is_allocated, measured_step_seconds, ran_out_of_memory, require_possible
from sweeps.table.cells import Row, number_of, text_of
from sweeps.table.prices import PricedRow, RowPrediction


@dataclass(frozen=True)
class RowComparison:
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

        Where the row says that it is what the allocator gave out, it leaves out what the framework reserves beyond it.
        """
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


@dataclass(frozen=True)
class SeriesMean:
    """Means over series of their scores; None where no series has one."""

    num_series: int
    step_error: float | None
    constant_error: float | None
    memory_error: float | None
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
        require_possible(row, priced.prediction)
    if seconds is None and memory is None and not ran_out:
        return None
    models_memory = priced.prediction.configuration.models_memory
    memory_bytes = memory * GIBIBYTE if memory is not None and models_memory else None
    fits = not ran_out if models_memory else None
    return RowComparison(row, priced.prediction, None if ran_out else seconds, memory_bytes, fits)


def group_by_table(comparisons: Sequence[RowComparison]) -> dict[str, list[RowComparison]]:
    """The rows by the source and the table that they are from, where they say so."""
    return _group_rows(comparisons, ("source", "table"))


def group_by_series(comparisons: Sequence[RowComparison]) -> dict[str, list[RowComparison]]:
    """The rows by their series, one model on one machine; none where the table has no such column."""
    return _group_rows([each for each in comparisons if text_of(each.row, "series")], ("series",))


def mean_of_series(comparisons: Sequence[RowComparison]) -> SeriesMean | None:
    """Errors with each series counted once, however many rows it has; None where there are no series."""
    scores = [score(members) for members in group_by_series(comparisons).values()]
    if not scores:
        return None
    names = ("step_error", "constant_error", "memory_error", "fits_right")
    known = {name: [value for one in scores if (value := getattr(one, name)) is not None] for name in names}
    return SeriesMean(len(scores), **{name: _mean(values) for name, values in known.items()})


def _group_rows(comparisons: Sequence[RowComparison], columns: Sequence[str]) -> dict[str, list[RowComparison]]:
    def name_of(each: RowComparison) -> str:
        return ", ".join(filter(None, (text_of(each.row, column) for column in columns))) or "rows"

    return grouped(comparisons, name_of)


def score(comparisons: Sequence[RowComparison]) -> Score:
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


def _step_rank_correlation(timed: Sequence[RowComparison]) -> float | None:
    predicted = [-one.prediction.estimate.step_seconds for one in timed]
    return spearman(predicted, [-(one.step_seconds or 0.0) for one in timed])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
