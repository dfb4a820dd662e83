"""A table of configurations, priced row by row: a prediction where the row can be priced, else the reason why not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from conf.errors import ConfigError
from conf.units import GIBIBYTE, TERA
from sweeps.confidence import Interval, interval_of
from sweeps.table.configuration import Configuration, configuration_of
from sweeps.table.file import PREDICTED_COLUMNS, Record
from train_core.costs import Estimate, StageMemory, estimates


@dataclass(frozen=True)
class RowPrediction:
    """A row that was priced."""

    configuration: Configuration
    estimate: Estimate

    @property
    def memory_bytes(self) -> int:
        """Bytes of the stage that the row asks for, or of the worst stage if it asks for none."""
        return self._stage.total_bytes

    @property
    def allocated_bytes(self) -> int:
        """The same bytes without what the framework reserves: what an allocator reports as its maximum."""
        return self._stage.allocated_bytes

    @property
    def _stage(self) -> StageMemory:
        stage = self.configuration.stage
        return self.estimate.stages[self.estimate.worst_stage if stage is None else stage]

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.estimate.memory_capacity_bytes

    @property
    def interval(self) -> Interval:
        """The interval in which four measurements of five are expected."""
        configuration = self.configuration
        return interval_of(configuration.setup, configuration.implementation.name, self.estimate)

    def cells(self) -> tuple[str, ...]:
        """Values of PREDICTED_COLUMNS."""
        priced, models_memory = self.estimate, self.configuration.models_memory
        return (
            f"{priced.step_seconds:.6g}",
            f"{self.interval.low_seconds:.4g}",
            f"{self.interval.high_seconds:.4g}",
            f"{priced.model_flops_per_second_per_device / TERA:.6g}",
            f"{priced.hardware_flops_per_second_per_device / TERA:.6g}",
            f"{100 * priced.model_flops_utilization:.5g}",
            f"{100 * priced.hardware_flops_utilization:.5g}",
            f"{self.memory_bytes / GIBIBYTE:.5g}" if models_memory else "",
            f"{self.allocated_bytes / GIBIBYTE:.5g}" if models_memory else "",
            ("yes" if self.fits else "no") if models_memory else "",
            "; ".join(self.interval.outside),
            "",
        )


@dataclass(frozen=True)
class PricedRow:
    """One row of the table with its `prediction`, or with None and the reason why it has none."""

    record: Record
    prediction: RowPrediction | None
    reason: str

    def cells(self) -> tuple[str, ...]:
        """The row's own cells, then values of PREDICTED_COLUMNS."""
        unpriced = ("",) * (len(PREDICTED_COLUMNS) - 1) + (self.reason,)
        return self.record.cells + (self.prediction.cells() if self.prediction else unpriced)


def price(records: Iterable[Record], implementation: str | None = None) -> list[PricedRow]:
    """Price every row, in order.

    Args:
        implementation: a name of IMPLEMENTATIONS for the rows that name none; None takes the usual one of each row.
    """
    read = [(record, *_read_row(record, implementation)) for record in records]
    priced = iter(estimates([(known.setup, known.implementation) for _, known, _ in read if known is not None]))
    return [
        PricedRow(record, None if known is None else RowPrediction(known, next(priced)), reason)
        for record, known, reason in read
    ]


def _read_row(record: Record, implementation: str | None) -> tuple[Configuration | None, str]:
    """The configuration of a row that can be priced, or None and the reason why it cannot."""
    try:
        record.require_whole()
        configuration = configuration_of(record.row, implementation)
    except ConfigError as error:  # one bad row must not cost the others their prediction
        return None, str(error)
    return configuration, ""
