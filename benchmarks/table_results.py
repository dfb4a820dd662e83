"""Each table of published rows: its errors left out and fitted, its intervals, and what the best prediction costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.left_out import LeftOutRow
from benchmarks.published_rows import MeasuredRow, compared_rows, table_of
from conf.grouped import grouped
from results.analysis.accuracy import spearman
from results.analysis.score import RowComparison, constant_error, score
from sweeps.table.prices import PricedRow

FEWEST_TO_CHOOSE_FROM = 4


@dataclass(frozen=True)
class TestedRow:
    """A measured row, as it is priced now and as it was without its table and clusters."""

    row: MeasuredRow
    without: LeftOutRow

    @property
    def error(self) -> float:
        """Relative error of the prediction as it is now."""
        return self.row.compared.prediction.estimate.step_seconds / self.row.seconds - 1


@dataclass(frozen=True)
class TableResult:
    """The rows of one table that hold a measured step."""

    name: str
    rows: tuple[TestedRow, ...]

    @property
    def left_out_error(self) -> float:
        """Mean absolute error by constants fitted without this table and its clusters."""
        return fmean([abs(each.without.error) for each in self.rows])

    @property
    def error(self) -> float:
        """Mean absolute error as it is now, by constants that were fitted on these rows too."""
        return fmean([abs(each.error) for each in self.rows])

    @property
    def constant_error(self) -> float:
        """The least mean error of one rate per device, which no model at all would score."""
        rates = [each.row.compared.hardware_flops_per_second_per_device or 0.0 for each in self.rows]
        return constant_error(rates) or 0.0

    @property
    def coverage(self) -> float:
        """Share of the rows in their interval of 80 %."""
        return fmean([float(each.without.is_inside) for each in self.rows])

    @property
    def regret(self) -> float | None:
        """The share by which the plan predicted fastest is slower than the best one measured, over all choices."""
        choices = _choices(self.rows)
        regrets = [regret_of([(each.without.left_out_s, each.row.seconds) for each in plans]) for plans in choices]
        return fmean(regrets) if regrets else None

    @property
    def rank_correlation(self) -> float | None:
        predicted = [-each.without.left_out_s for each in self.rows]
        return spearman(predicted, [-each.row.seconds for each in self.rows])

    def worst(self, count: int) -> list[TestedRow]:
        """The rows that are missed by most, the largest miss first."""
        return sorted(self.rows, key=lambda each: -abs(each.without.error))[:count]


@dataclass(frozen=True)
class MemoryResult:
    """The rows of one table that say how much memory they took, or that it ran out."""

    name: str
    num_figures: int
    error: float | None
    num_fits: int
    fits_right: float | None


def table_results(rows: Iterable[MeasuredRow], left_out: Iterable[LeftOutRow]) -> list[TableResult]:
    """Every table, in the order of its first row. Rows that were not left out yet are not in it."""
    by_place = {each.place: each for each in left_out}
    tested = [TestedRow(row, by_place[row.place]) for row in rows if row.place in by_place]
    return [TableResult(name, tuple(of)) for name, of in grouped(tested, lambda each: each.row.table).items()]


def memory_results(priced: Iterable[PricedRow]) -> list[MemoryResult]:
    """Every table that says something about memory."""
    of_tables = grouped(compared_rows(priced), lambda one: table_of(one.row))
    results = [_memory_result(name, of) for name, of in of_tables.items()]
    return [each for each in results if each.num_figures or (each.fits_right or 0.0) < 1.0]


def _memory_result(name: str, compared: Sequence[RowComparison]) -> MemoryResult:
    found = score(compared)
    return MemoryResult(name, found.num_memories, found.memory_error, found.num_fits, found.fits_right)


def job_of(row: MeasuredRow) -> object:
    """Equal for rows that differ only in how one job is laid out: the same model, devices, batch and sequence."""
    setup = row.run.setup
    model = setup.model.model_copy(update={"vocab_size": 1})  # is padded for the tensor size
    return row.series, model, setup.parallel.world_size, setup.batch.global_batch_size


def _choices(rows: Sequence[TestedRow]) -> list[list[TestedRow]]:
    """Jobs with enough layouts to choose from."""
    jobs = grouped(rows, lambda each: job_of(each.row)).values()
    return [choice for choice in jobs if len(choice) >= FEWEST_TO_CHOOSE_FROM]


ALIKE = 1e-3
"""Predictions that differ by less look the same in the three digits that are printed, so that nobody could choose."""


def regret_of(steps: Sequence[tuple[float, float]]) -> float:
    """How much slower the plan predicted fastest is than the best; of plans that are predicted alike their mean.

    Args:
        steps: predicted and measured seconds of a step of each plan.
    """
    least = min(predicted for predicted, _ in steps)
    chosen = [measured for predicted, measured in steps if predicted <= least * (1 + ALIKE)]
    return fmean(chosen) / min(measured for _, measured in steps) - 1
